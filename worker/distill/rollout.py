"""A fresh training batch from the student: sample, revise (SCRG), and keep what the loss can reuse.

Knows how sampling and SCRG fit together and what to report of them. Does not know losses or the optimizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from app.core.events import Correction
from app.core.job_config import ScrgConfig
from worker.distill import read_along
from worker.distill.data import Row
from worker.distill.generate import Rollouts, SamplingSettings, sample
from worker.distill.models import SplitModel
from worker.distill.scrg import RoundOutcome, TeacherReading, read_with_teacher, revise
from worker.distill.timing import Clock
from worker.distill.types import TokenSequence


class _Drawing(TypedDict):
    config: ScrgConfig
    settings: SamplingSettings
    generator: torch.Generator
    clock: Clock


@dataclass(frozen=True)
class FreshBatch:
    """`sequences` are trained on, `to_store` goes to the replay buffer. `teacher_hidden_ND` (rows in order, one state
    per response token) spares the loss a teacher pass."""

    sequences: list[TokenSequence]
    to_store: list[TokenSequence]
    teacher_hidden_ND: Tensor
    metrics: dict[str, float] = field(default_factory=dict)
    example: dict[str, Any] | None = None

    def correction(self, step: int) -> Correction | None:
        """One revised sequence as an event for the page."""
        return Correction(step=step, **self.example) if self.example else None


def draw_fresh(
    rows: Sequence[Row],
    *,
    teacher: SplitModel,
    student: SplitModel,
    config: ScrgConfig,
    settings: SamplingSettings,
    generator: torch.Generator,
    tokenizer: PreTrainedTokenizerBase,
    clock: Clock,
    along: bool = True,
) -> FreshBatch:
    """Student samples for the prompts of `rows`, revised by the teacher: while they are written where that comes to the
    same and `along` says so, else afterwards."""
    prompts = [row.prompt_ids for row in rows]
    drawing = _Drawing(config=config, settings=settings, generator=generator, clock=clock)
    if along and read_along.applies(config, teacher=teacher, student=student):
        state, reading, outcomes = read_along.sample_and_revise(teacher, student, prompts, **drawing)
        original = state.responses()  # `applies` knows that nobody asks for it
    else:
        state, reading, outcomes, original = _whole_samples(teacher, student, prompts, **drawing)
    revised = state.responses()
    keep = _kept_rows(outcomes, len(rows), config)
    stored = original if config.store == "original" else revised
    keep_B = torch.zeros(len(rows), dtype=torch.bool, device=state.length_B.device)
    keep_B[keep] = True
    return FreshBatch(
        sequences=[TokenSequence(rows[i].prompt_ids, revised[i], is_ground_truth=False) for i in keep],
        to_store=[TokenSequence(rows[i].prompt_ids, stored[i], is_ground_truth=False) for i in keep],
        teacher_hidden_ND=reading.hidden_BTD[state.valid_BT() & keep_B[:, None]],
        metrics=_metrics(outcomes, state),
        example=_example(rows, state, outcomes, tokenizer),
    )


def _whole_samples(
    teacher: SplitModel, student: SplitModel, prompts: Sequence[tuple[int, ...]], **drawing: Unpack[_Drawing]
) -> tuple[Rollouts, TeacherReading, list[RoundOutcome], list[tuple[int, ...]]]:
    """As `read_along.sample_and_revise`, for every setting; and the responses as they were before the first round."""
    settings, generator, clock = drawing["settings"], drawing["generator"], drawing["clock"]
    with clock("generate"):
        state = sample(student, prompts, settings=settings, generator=generator)
    original = state.responses()
    with clock("teacher"):  # the pass that the loss needs, with SCRG or without
        reading = read_with_teacher(teacher, state, settings=settings)
    with clock("scrg"):
        _, outcomes = revise(
            teacher,
            student,
            state,
            config=drawing["config"],
            settings=settings,
            generator=generator,
            reading=reading,
        )
    return state, reading, outcomes, original


def _kept_rows(outcomes: Sequence[RoundOutcome], count: int, config: ScrgConfig) -> list[int]:
    """All rows; with `no_mismatch: drop` those that some round corrected, unless none was."""
    if config.no_mismatch == "keep" or not outcomes:
        return list(range(count))
    corrected = torch.stack([outcome.corrected_B for outcome in outcomes]).any(0)
    return corrected.nonzero().squeeze(1).tolist() or list(range(count))


def _metrics(outcomes: Sequence[RoundOutcome], state: Rollouts) -> dict[str, float]:
    metrics = {"sampling/response_tokens": float(state.length_B.float().mean())}
    if not outcomes:
        return metrics
    first = outcomes[0]
    metrics["scrg/mismatch_rate"] = float(first.corrected_B.float().mean())
    rows = first.corrected_B
    if rows.any():
        metrics["scrg/error_position"] = float((first.position_B[rows] / state.length_B[rows]).mean())
        metrics["scrg/error_kl"] = float(first.kl_B[rows].mean())
        dropped = torch.tensor([len(tail) for tail in first.dropped], device=rows.device, dtype=torch.float32)
        metrics["scrg/dropped_tokens"] = float(dropped[rows].mean())
    return metrics


def _example(
    rows: Sequence[Row], state: Rollouts, outcomes: Sequence[RoundOutcome], tokenizer: PreTrainedTokenizerBase
) -> dict[str, Any] | None:
    """The row whose error had the largest KL in the last round that corrected anything, decoded in pieces.

    The last round, because what it left is the final sequence: an earlier round's tail may have been revised again.
    """
    done = [outcome for outcome in outcomes if outcome.corrected_B.any()]
    if not done:
        return None
    last = done[-1]
    b = int(last.kl_B.masked_fill(~last.corrected_B, -torch.inf).argmax())
    j = int(last.position_B[b])
    final = state.responses()[b]
    return {
        "prompt": rows[b].prompt,
        "before": tokenizer.decode(final[:j]),
        "student_token": tokenizer.decode([int(last.student_token_B[b])]),
        "teacher_token": tokenizer.decode([int(last.teacher_token_B[b])]),
        "dropped": tokenizer.decode(last.dropped[b]),
        "regenerated": tokenizer.decode(final[j + 1 :]),
        "error_position": j,
        "kl": float(last.kl_B[b]),
    }
