"""Which rows a batch takes: of several tried, those that the student has more to learn from are the likelier [ours].

Knows rows, both models, the divergence between them, and what it last was of each row. Does not know what becomes of
the chosen rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict, Unpack

import torch
from torch import Tensor

from app.core.job_config import ScrgConfig
from worker.distill.data import Row, RowOrder, ground_truth, kept_states
from worker.distill.generate import SamplingSettings, sample
from worker.distill.lean_reading import read_responses
from worker.distill.losses.base import log_probs
from worker.distill.models import SplitModel
from worker.distill.scrg import SCORED_LOGITS, divergence, read_with_teacher, score
from worker.distill.timing import Clock
from worker.distill.training_state import State
from worker.distill.types import make_batch

_EVEN = 1e-6  # nats that every row has at least, so that there are always enough to draw from
# Of what was known, one row in so many is looked at again, whatever it was: students forget.
_LOOKED_AT_AGAIN = 0.1
_MEMORY = 0.95  # share of the old mean in the running mean of looks
_DIVERGED = 1e30  # nats of a row whose look is not finite: it is taken for certain, and its loss says what is wrong


class Looking(TypedDict):
    """What it takes to look at rows. `reads_teacher`: whether the losses that the rows are chosen for do."""

    teacher: SplitModel
    student: SplitModel
    reads_teacher: bool
    config: ScrgConfig
    settings: SamplingSettings
    generator: torch.Generator
    clock: Clock


class RowChoice:
    """Endless batches from `order`, each chosen from `candidates` times as many rows (see `choose`).

    With `skip_known` [ours] a row whose last look found less than looks find on average does not even become a
    candidate, with a chance that grows with how much less it was: one in ten, at least, is looked at again. So the same
    number of looks chooses from rows of which more have something to teach. A row that was never looked at always is.
    """

    def __init__(self, order: RowOrder, *, candidates: int, skip_known: bool) -> None:
        self._order = order
        self._candidates = candidates
        self._skips = skip_known and candidates > 1
        self._found_R = torch.full((order.highest_number + 1 if self._skips else 0,), torch.nan)
        self._mean: float | None = None

    def take(self, size: int, **looking: Unpack[Looking]) -> list[Row]:
        """The next `size` rows."""
        rows = self._next(size * self._candidates, looking["generator"])
        if self._candidates == 1:
            return rows
        disagreement_B = disagreement(rows, **looking).float().cpu().nan_to_num(nan=_DIVERGED, posinf=_DIVERGED)
        if self._skips:
            self._remember(rows, disagreement_B)
        return choose(rows, disagreement_B, size, generator=looking["generator"])

    def _next(self, count: int, generator: torch.Generator) -> list[Row]:
        rows: list[Row] = []
        while len(rows) < count:
            rows += [row for row in self._order.take(count - len(rows)) if not self._is_skipped(row, generator)]
        return rows

    def _is_skipped(self, row: Row, generator: torch.Generator) -> bool:
        if self._mean is None or self._found_R[row.number].isnan():
            return False
        chance = max(_LOOKED_AT_AGAIN, float(self._found_R[row.number]) / self._mean)
        return float(torch.rand((), generator=generator)) >= chance

    def _remember(self, rows: Sequence[Row], disagreement_B: Tensor) -> None:
        self._found_R[[row.number for row in rows]] = disagreement_B
        mean = max(float(disagreement_B.mean()), _EVEN)
        self._mean = mean if self._mean is None else _MEMORY * self._mean + (1 - _MEMORY) * mean

    def state(self) -> State:
        return {"order": self._order.state(), "found": self._found_R.clone(), "mean": self._mean}

    def load(self, state: State) -> None:
        """`state()`, or that of an order alone, as runs kept it before anything was remembered."""
        self._order.load(state.get("order", state))
        self._found_R = state.get("found", self._found_R).clone()
        self._mean = state.get("mean")


def disagreement(rows: Sequence[Row], **looking: Unpack[Looking]) -> Tensor:
    """[B] nats that are left to learn from each of `rows`: `taught_disagreement`, or `sampled_disagreement` if any of
    them lacks a response."""
    taught = all(row.response_ids is not None for row in rows)
    return (taught_disagreement if taught else sampled_disagreement)(rows, **looking)


def choose(rows: Sequence[Row], disagreement_B: Tensor, count: int, *, generator: torch.Generator) -> list[Row]:
    """`count` of `rows`, in their order, drawn without replacement with chances in proportion to `disagreement_B`.

    Drawn, not the largest ones taken: those are much the same rows every time, and often ones that the teacher gets
    wrong. The KL to the teacher rather than the response's likelihood: it is zero where the teacher is as much in doubt
    as the student, so that noise in the data does not pass for something to be learned.
    """
    chance_B = disagreement_B.double().cpu().clamp(min=_EVEN)
    chosen = torch.multinomial(chance_B, count, generator=generator).tolist()
    return [rows[b] for b in sorted(chosen)]


@torch.no_grad()
def taught_disagreement(rows: Sequence[Row], **looking: Unpack[Looking]) -> Tensor:
    """[B] nats over each row's response: the KL (`config.kl_direction`) between the two next-token distributions, or
    where no loss reads the teacher minus the response's log-likelihood. A pass of the student, and one of the teacher
    unless its states are kept with the rows. Runs over slices of positions, so no [B, T, V] tensor is whole."""
    teacher, student, clock = looking["teacher"], looking["student"], looking["clock"]
    with clock("data"):
        batch = make_batch(ground_truth(rows), pad_id=looking["settings"].pad_id, device=student.device)
        teacher_ND = kept_states(rows, student.device) if looking["reads_teacher"] else None
    if looking["reads_teacher"] and teacher_ND is None:
        with clock("teacher"):
            teacher_ND = read_responses(teacher, batch)
    with clock("choice"):
        student_ND = read_responses(student, batch)
        values = []
        for part_N in torch.arange(batch.num_positions).split(max(1, SCORED_LOGITS // teacher.vocabulary_size)):
            logits_NV = student.head(student_ND[part_N])
            if teacher_ND is None:
                log_q_NV = log_probs(logits_NV)
                values.append(-log_q_NV.gather(1, batch.labels_N[part_N, None]).squeeze(1))
            else:
                log_p_NV = log_probs(teacher.head(teacher_ND[part_N]))
                values.append(divergence(log_p_NV, logits_NV, config=looking["config"]))
        disagreement_B = torch.zeros(len(rows), device=student.device)
        return disagreement_B.index_add_(0, batch.row_N, torch.cat(values).float()) if values else disagreement_B


@torch.no_grad()
def sampled_disagreement(rows: Sequence[Row], **looking: Unpack[Looking]) -> Tensor:
    """[B] nats along a sample of the student's for each prompt: the KL (`config.kl_direction`), added up.

    The samples are thrown away: what is trained on is written anew for the chosen rows, so that it does not depend on
    having been chosen.
    """
    teacher, student, clock = looking["teacher"], looking["student"], looking["clock"]
    settings, generator = looking["settings"], looking["generator"]
    with clock("generate"):
        state = sample(student, [row.prompt_ids for row in rows], settings=settings, generator=generator)
    with clock("teacher"):
        reading = read_with_teacher(teacher, state, settings=settings)
        _, kl_BT = score(teacher, student, reading, state, config=looking["config"], generator=generator)
    return kl_BT.sum(1)
