"""SCRG while the student writes: the teacher reads along and corrects at once, so that hardly a tail is drawn in vain.

Knows for which settings this gives the sequences that `scrg.revise` makes of whole samples, and how far to look ahead.
Does not know losses or the replay buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from app.core.job_config import ScrgConfig
from worker.distill.decoder import keeps_every_column
from worker.distill.generate import Rollouts, SamplingSettings, begin, chances, extend
from worker.distill.models import SplitModel
from worker.distill.scrg import (
    SCORED_LOGITS,
    RoundOutcome,
    TeacherReading,
    choose,
    divergence,
    read_prompts,
    replace,
)
from worker.distill.timing import Clock

# Tokens that a row writes before the teacher looks at them; twice as many after each look that finds nothing.
FIRST_LOOK = 1


def applies(config: ScrgConfig, *, teacher: SplitModel, student: SplitModel) -> bool:
    """Whether reading along gives what correcting whole samples gives.

    It does where a correction depends on nothing right of it: at the first token that is not the teacher's most
    probable one. What stood behind it is dropped whatever it is, so it need not be drawn. Models that cannot rewind
    their cache would prefill for every look.
    """
    return (
        config.rounds > 0
        and (config.position, config.teacher_token, config.store) == ("first", "greedy", "corrected")
        and keeps_every_column(teacher)
        and keeps_every_column(student)
    )


@dataclass(frozen=True)
class _Found:
    """One correction: what `RoundOutcome` says of a row."""

    row: int
    position: int
    student_token: int
    teacher_token: int
    dropped: tuple[int, ...]


@torch.no_grad()
def sample_and_revise(
    teacher: SplitModel,
    student: SplitModel,
    prompts: Sequence[tuple[int, ...]],
    *,
    config: ScrgConfig,
    settings: SamplingSettings,
    generator: torch.Generator,
    clock: Clock,
) -> tuple[Rollouts, TeacherReading, list[RoundOutcome]]:
    """`sample`, `read_with_teacher` and `revise` in one go, for settings to which this `applies`.

    The same tokens, states and random numbers [ours]; only `dropped` holds no more than was written when the teacher
    looked, where the whole way has the rest of the sample. Time is charged to `generate` (writing, in vain or not),
    `teacher` (prompts, and what needed no look) and `scrg` (the looks).
    """
    uniform_BT = chances(len(prompts), settings=settings, generator=generator, device=student.device)
    with clock("generate"):
        state, first_BD = begin(student, prompts, settings=settings)
    hidden_AD: Tensor | None = first_BD
    with clock("teacher"):
        reading = read_prompts(teacher, state, settings=settings)
    watch = _Watch(teacher, state, reading, uniform_BT, config=config, settings=settings, generator=generator)
    going = list(range(len(prompts)))
    while going:
        steps = watch.steps()
        with clock("generate"):
            going = extend(
                student, state, going, settings=settings, uniform_BT=watch.uniform_BT, hidden_AD=hidden_AD, steps=steps
            )
        hidden_AD = None
        if steps is not None:
            with clock("scrg"):
                going = watch.look(going)
    with clock("teacher"):
        reading.catch_up(state, torch.ones_like(state.length_B, dtype=torch.bool))
    with clock("scrg"):
        return state, reading, watch.outcomes(student)


class _Watch:
    """What the teacher has agreed with, row by row, and the corrections so far. Rows that have had all their rounds, or
    that ended and were agreed with, are watched no more."""

    def __init__(
        self,
        teacher: SplitModel,
        state: Rollouts,
        reading: TeacherReading,
        uniform_BT: Tensor,
        *,
        config: ScrgConfig,
        settings: SamplingSettings,
        generator: torch.Generator,
    ) -> None:
        self._teacher, self._state, self._reading = teacher, state, reading
        self._config, self._settings, self._generator = config, settings, generator
        self._slice = max(1, SCORED_LOGITS // teacher.vocabulary_size)  # positions whose logits are alive at once
        self.uniform_BT = uniform_BT  # of each row's present round
        self._rounds_B = torch.zeros_like(state.length_B)  # corrections of each row
        self._agreed_B = torch.zeros_like(state.length_B)
        self._look_B = torch.full_like(state.length_B, FIRST_LOOK)
        self._watched_B = torch.ones_like(state.length_B, dtype=torch.bool)
        self._found: list[list[_Found]] = []  # by round
        self._uniforms: list[Tensor] = []  # by round, drawn when the first row gets there

    def steps(self) -> int | None:
        """How many tokens to write before the next look; None when nobody is watched."""
        look = self._look_B[self._watched_B]
        return int(look.min()) if len(look) else None

    def look(self, going: Sequence[int]) -> list[int]:
        """Reads what the watched rows have written and corrects each one's first mismatch; the rows that go on."""
        state, watched_B = self._state, self._watched_B
        self._reading.catch_up(state, watched_B)
        token_BT = self._teachers_tokens()
        from_B = torch.where(watched_B, self._agreed_B, state.tokens_BT.shape[1])
        position_B, corrected_B = choose(
            state,
            token_BT,
            torch.zeros_like(token_BT, dtype=torch.float32),
            from_B,
            config=self._config.model_copy(update={"later_rounds": "right_only"}),
            eos_ids=self._settings.eos_ids,
            generator=self._generator,
        )
        token_B = token_BT.gather(1, position_B[:, None]).squeeze(1)
        going_B = torch.zeros_like(watched_B)
        going_B[list(going)] = True
        self._note(position_B, token_B, corrected_B)
        active_B = replace(state, self._reading, corrected_B, position_B, token_B, settings=self._settings)
        going_B = torch.where(corrected_B, active_B, going_B)
        self._look_B = torch.where(corrected_B, FIRST_LOOK, self._look_B * 2)
        self._agreed_B = torch.where(watched_B, state.length_B, self._agreed_B)
        self._watched_B = watched_B & going_B & (self._rounds_B < self._config.rounds)
        return going_B.nonzero().squeeze(1).tolist()

    def _teachers_tokens(self) -> Tensor:
        """The teacher's most probable token [B, T] where a watched row has one that was not looked at; else 0."""
        state = self._state
        place_T = torch.arange(state.tokens_BT.shape[1], device=state.length_B.device)
        new_BT = self._watched_B[:, None] & (place_T >= self._agreed_B[:, None]) & state.valid_BT()
        token_BT = torch.zeros_like(state.tokens_BT)
        parts = self._reading.hidden_BTD[new_BT].split(self._slice)
        token_BT[new_BT] = torch.cat([self._teacher.head(part_ND).argmax(-1) for part_ND in parts])
        return token_BT

    def _note(self, position_B: Tensor, token_B: Tensor, corrected_B: Tensor) -> None:
        """Remembers the corrections and gives each corrected row the random numbers of its next round."""
        responses = self._state.responses()
        for b in corrected_B.nonzero().squeeze(1).tolist():
            done, j = int(self._rounds_B[b]), int(position_B[b])
            if done == len(self._found):
                self._found.append([])
                self._uniforms.append(self._chances())
            self._found[done].append(_Found(b, j, responses[b][j], int(token_B[b]), responses[b][j + 1 :]))
            self.uniform_BT[b] = self._uniforms[done][b]
        self._rounds_B += corrected_B

    def _chances(self) -> Tensor:
        rows, device = len(self._rounds_B), self._rounds_B.device
        return chances(rows, settings=self._settings, generator=self._generator, device=device)

    def outcomes(self, student: SplitModel) -> list[RoundOutcome]:
        """One for each round, up to the first without a correction."""
        rounds = [*self._found, []][: self._config.rounds]
        kl_C = self._divergences(student)
        outcomes, start = [], 0
        for found in rounds:
            outcomes.append(self._outcome(found, kl_C[start : start + len(found)]))
            start += len(found)
        return outcomes

    def _divergences(self, student: SplitModel) -> Tensor:
        """The KL where each correction was made, afterwards: what predicts a token does not change when it does."""
        found = [one for by_round in self._found for one in by_round]
        parts = [torch.zeros(0, device=student.device)]
        for start in range(0, len(found), self._slice):
            part = found[start : start + self._slice]
            row_C, position_C = torch.tensor([(one.row, one.position) for one in part], device=student.device).T
            log_p_CV = self._teacher.head(self._reading.hidden_BTD[row_C, position_C]).float().log_softmax(-1)
            student_logits_CV = student.head(self._state.hidden_BTD[row_C, position_C])
            parts.append(divergence(log_p_CV, student_logits_CV, config=self._config))
        return torch.cat(parts)

    def _outcome(self, found: Sequence[_Found], kl_F: Tensor) -> RoundOutcome:
        rows, device = len(self._rounds_B), self._rounds_B.device
        row_F = torch.tensor([one.row for one in found], dtype=torch.long, device=device)
        place = torch.zeros(rows, 3, dtype=torch.long, device=device)
        for one in found:
            place[one.row] = torch.tensor([one.position, one.student_token, one.teacher_token], device=device)
        position_B, student_token_B, teacher_token_B = place.T
        dropped: list[tuple[int, ...]] = [()] * rows
        for one in found:
            dropped[one.row] = one.dropped
        return RoundOutcome(
            corrected_B=torch.zeros(rows, dtype=torch.bool, device=device).index_fill(0, row_F, True),
            position_B=position_B,
            student_token_B=student_token_B,
            teacher_token_B=teacher_token_B,
            kl_B=torch.zeros(rows, device=device).index_copy(0, row_F, kl_F.to(device)),
            dropped=dropped,
        )
