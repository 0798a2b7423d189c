"""Sequence correction and re-generation (SCRG): find a sample's worst token, replace it, sample the rest again.

Liu et al., arXiv 2407.10068, Eq. 3 and 4; every choice they leave open is a switch of `ScrgConfig` [ours].
Knows rollouts and the two models. Does not know losses, the replay buffer or when it is called.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from app.core.job_config import ScrgConfig
from worker.distill.decoder import Decoder
from worker.distill.generate import Rollouts, SamplingSettings, chances, draw, extend, pad_left
from worker.distill.models import SplitModel

SCORED_LOGITS = 2**23  # logits alive at once while candidates are scored: 32 MiB per float32 tensor


@dataclass
class TeacherReading:
    """The teacher over a batch of rollouts: `hidden_BTD[b, t]` predicts `tokens_BT[b, t]`, and the cache behind it."""

    hidden_BTD: Tensor
    decoder: Decoder

    @torch.no_grad()
    def catch_up(self, state: Rollouts, rows_B: Tensor) -> None:
        """Reads what `rows_B` have in their responses and the teacher has not seen, each one's last token left out."""
        from_B = self.decoder.length_B - state.prompt_length_B
        new_B = torch.where(rows_B, state.length_B - 1 - from_B, 0)
        width = int(new_B.max())
        if width <= 0:
            return
        offset_W = torch.arange(width, device=new_B.device)
        visible_BW = offset_W < new_B[:, None]
        column_BW = (from_B[:, None] + offset_W).clamp_max(state.tokens_BT.shape[1] - 1)
        hidden_BWD = self.decoder.append(state.tokens_BT.gather(1, column_BW), visible_BW)
        row_BW = torch.arange(len(new_B), device=new_B.device)[:, None].expand_as(column_BW)
        self.hidden_BTD[row_BW[visible_BW], column_BW[visible_BW] + 1] = hidden_BWD[visible_BW]


@dataclass(frozen=True)
class RoundOutcome:
    """What one round did. Per row: whether it was corrected, where (0-based response position), from and to which
    token, the KL there, and the tokens that were dropped behind it. What is said of other rows means nothing."""

    corrected_B: Tensor
    position_B: Tensor
    student_token_B: Tensor
    teacher_token_B: Tensor
    kl_B: Tensor
    dropped: list[tuple[int, ...]]


@torch.no_grad()
def read_prompts(teacher: SplitModel, state: Rollouts, *, settings: SamplingSettings) -> TeacherReading:
    """The teacher over the prompts alone: the states that predict the first tokens."""
    decoder, hidden_BCD = _reader(
        teacher, state, settings, *pad_left(state.prompts, pad_id=settings.pad_id, device=teacher.device)
    )
    hidden_BTD = hidden_BCD.new_zeros(*state.tokens_BT.shape, hidden_BCD.shape[-1])
    hidden_BTD[:, 0] = hidden_BCD[:, -1]
    return TeacherReading(hidden_BTD=hidden_BTD, decoder=decoder)


@torch.no_grad()
def read_with_teacher(teacher: SplitModel, state: Rollouts, *, settings: SamplingSettings) -> TeacherReading:
    """One teacher pass over prompts and responses (all but each response's last token, which predicts nothing)."""
    prompt_BP, prompt_visible_BP = pad_left(state.prompts, pad_id=settings.pad_id, device=teacher.device)
    longest = int(state.length_B.max())
    tokens_BC = torch.cat([prompt_BP, state.tokens_BT[:, : longest - 1]], 1)
    visible_BC = torch.cat([prompt_visible_BP, state.valid_BT()[:, 1:longest]], 1)
    decoder, hidden_BCD = _reader(teacher, state, settings, tokens_BC, visible_BC)
    start = prompt_BP.shape[1] - 1
    hidden_BTD = hidden_BCD.new_zeros(*state.tokens_BT.shape, hidden_BCD.shape[-1])
    hidden_BTD[:, :longest] = hidden_BCD[:, start : start + longest]
    return TeacherReading(hidden_BTD=hidden_BTD, decoder=decoder)


def _reader(
    teacher: SplitModel, state: Rollouts, settings: SamplingSettings, tokens_BC: Tensor, visible_BC: Tensor
) -> tuple[Decoder, Tensor]:
    """A teacher's decoder that has read `tokens_BC`, and its states; it has room for the whole responses."""
    columns = max(map(len, state.prompts)) + settings.max_new_tokens
    decoder = Decoder(teacher, rows=len(state.prompts), reuse=settings.reuse_cache, columns=columns)
    return decoder, decoder.append(tokens_BC, visible_BC)


def divergence(log_p_NV: Tensor, student_logits_NV: Tensor, *, config: ScrgConfig) -> Tensor:
    """The KL of Eq. 3 [N], from the teacher's log-probabilities and the student's logits."""
    log_q_NV = student_logits_NV.float().log_softmax(-1)
    if config.kl_direction == "teacher_student":
        return (log_p_NV.exp() * (log_p_NV - log_q_NV)).sum(-1)
    return (log_q_NV.exp() * (log_q_NV - log_p_NV)).sum(-1)


@torch.no_grad()
def score(
    teacher: SplitModel,
    student: SplitModel,
    reading: TeacherReading,
    state: Rollouts,
    *,
    config: ScrgConfig,
    generator: torch.Generator,
    max_logits: int = SCORED_LOGITS,
) -> tuple[Tensor, Tensor]:
    """The teacher's token [B, T] and the KL [B, T] at every response position; zero where there is no token.

    KL(p || q) of the next-token distributions at temperature 1 (Eq. 3), in float32 (in bfloat16 log-probabilities
    are off by up to 0.8). Runs over slices of positions, so no [B, T, V] tensor is whole.
    """
    valid_BT = state.valid_BT()
    teacher_ND, student_ND = reading.hidden_BTD[valid_BT], state.hidden_BTD[valid_BT]
    drawn = config.teacher_token == "sample"
    uniform_N = torch.rand(len(teacher_ND), generator=generator).to(teacher.device) if drawn else None
    step = max(1, max_logits // teacher.vocabulary_size)
    tokens, divergences = [], []
    for start in range(0, len(teacher_ND), step):
        part = slice(start, start + step)
        logits_NV = teacher.head(teacher_ND[part])
        log_p_NV = logits_NV.float().log_softmax(-1)
        tokens.append(logits_NV.argmax(-1) if uniform_N is None else draw(log_p_NV.exp(), uniform_N[part]))
        divergences.append(divergence(log_p_NV, student.head(student_ND[part]), config=config))
    token_BT = torch.zeros_like(state.tokens_BT)
    kl_BT = torch.zeros(token_BT.shape, device=token_BT.device)
    token_BT[valid_BT] = torch.cat(tokens)
    kl_BT[valid_BT] = torch.cat(divergences)
    return token_BT, kl_BT


def choose(
    state: Rollouts,
    teacher_token_BT: Tensor,
    kl_BT: Tensor,
    earliest_B: Tensor,
    *,
    config: ScrgConfig,
    eos_ids: frozenset[int],
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """The error position of each row (Eq. 3: the largest KL among the mismatches) and whether there is one.

    `earliest_B`: the first position that may be chosen (right of earlier corrections). Ties go to the first.
    """
    place_T = torch.arange(kl_BT.shape[1], device=kl_BT.device)
    mismatch_BT = state.valid_BT() & (state.tokens_BT != teacher_token_BT)
    if config.later_rounds == "right_only":
        mismatch_BT &= place_T >= earliest_B[:, None]
    if config.eos_correction == "skip":
        eos_ids_E = torch.tensor(sorted(eos_ids), device=kl_BT.device)
        mismatch_BT &= ~torch.isin(teacher_token_BT, eos_ids_E)
    if config.position == "largest_kl":
        rank_BT = kl_BT
    elif config.position == "first":
        rank_BT = -place_T.expand_as(kl_BT).float()
    else:
        rank_BT = torch.rand(kl_BT.shape, generator=generator).to(kl_BT.device)
    position_B = rank_BT.masked_fill(~mismatch_BT, -torch.inf).argmax(1)
    return position_B, mismatch_BT.any(1)


def replace(
    state: Rollouts,
    reading: TeacherReading,
    corrected_B: Tensor,
    position_B: Tensor,
    token_B: Tensor,
    *,
    settings: SamplingSettings,
) -> Tensor:
    """Puts `token_B` at `position_B` of the rows `corrected_B` and drops what is behind it, in place; which rows [B]
    go on from there."""
    rows = corrected_B.nonzero().squeeze(1)
    state.tokens_BT[rows, position_B[rows]] = token_B[rows]
    state.length_B[rows] = position_B[rows] + 1
    keep_B = state.prompt_length_B + torch.where(corrected_B, position_B, state.tokens_BT.shape[1])
    state.decoder.rewind(keep_B)
    reading.decoder.rewind(keep_B)
    eos_ids_E = torch.tensor(sorted(settings.eos_ids), device=position_B.device)
    ended_B = torch.isin(token_B, eos_ids_E) & (not settings.ignore_eos)
    return corrected_B & ~ended_B & (state.length_B < settings.max_new_tokens)


@torch.no_grad()
def correct_once(
    teacher: SplitModel,
    student: SplitModel,
    reading: TeacherReading,
    state: Rollouts,
    earliest_B: Tensor,
    *,
    config: ScrgConfig,
    settings: SamplingSettings,
    generator: torch.Generator,
) -> RoundOutcome:
    """One round over the batch, in place: choose, replace, and let the student sample what follows (Eq. 4)."""
    teacher_token_BT, kl_BT = score(teacher, student, reading, state, config=config, generator=generator)
    position_B, corrected_B = choose(
        state, teacher_token_BT, kl_BT, earliest_B, config=config, eos_ids=settings.eos_ids, generator=generator
    )
    at_B1 = position_B[:, None]
    teacher_token_B = teacher_token_BT.gather(1, at_B1).squeeze(1)
    outcome = RoundOutcome(
        corrected_B=corrected_B,
        position_B=position_B,
        student_token_B=state.tokens_BT.gather(1, at_B1).squeeze(1),
        teacher_token_B=teacher_token_B,
        kl_B=kl_BT.gather(1, at_B1).squeeze(1),
        dropped=[r[j + 1 :] for r, j in zip(state.responses(), position_B.tolist(), strict=True)],
    )
    if not corrected_B.any():
        return outcome
    active_B = replace(state, reading, corrected_B, position_B, teacher_token_B, settings=settings)
    uniform_BT = chances(len(active_B), settings=settings, generator=generator, device=student.device)
    extend(student, state, active_B.nonzero().squeeze(1).tolist(), settings=settings, uniform_BT=uniform_BT)
    reading.catch_up(state, corrected_B)  # the new suffix only: states left of the correction are still valid
    return outcome


@torch.no_grad()
def revise(
    teacher: SplitModel,
    student: SplitModel,
    state: Rollouts,
    *,
    config: ScrgConfig,
    settings: SamplingSettings,
    generator: torch.Generator,
    reading: TeacherReading | None = None,
) -> tuple[TeacherReading, list[RoundOutcome]]:
    """SCRG on a batch of fresh samples, in place. Returns the teacher's states for the final sequences (so that the
    loss needs no further teacher pass) and what each round did; stops early when a round finds no mismatch.
    `reading` is the teacher's of these samples, if it has been done."""
    reading = reading or read_with_teacher(teacher, state, settings=settings)
    earliest_B = torch.zeros_like(state.length_B)
    outcomes = []
    for _ in range(config.rounds):
        outcome = correct_once(
            teacher, student, reading, state, earliest_B, config=config, settings=settings, generator=generator
        )
        outcomes.append(outcome)
        if not outcome.corrected_B.any():
            break
        earliest_B = torch.where(outcome.corrected_B, outcome.position_B + 1, earliest_B)
    return reading, outcomes
