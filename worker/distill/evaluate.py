"""Held-out quality by teacher forcing: KL to the teacher both ways, agreement, and the training objective itself.

Knows held-out rows and the two models. Does not sample: what a student writes by itself is measured in `answers.py`
and `exposure.py`, and `checkup.py` puts all of it together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.distill.data import Row
from worker.distill.losses.base import log_probs
from worker.distill.models import SplitModel
from worker.distill.objective import Objective
from worker.distill.trainee import Trainee
from worker.distill.types import Batch

CHUNK_LOGITS = 2**25  # logits alive at once: 128 MiB per float32 tensor


@dataclass(frozen=True)
class HeldOut:
    """The held-out rows as batches, with the teacher's states for them, which never change: computed once."""

    rows: Sequence[Row]
    batches: Sequence[Batch]
    teacher_hidden: Sequence[Tensor]

    @classmethod
    @torch.no_grad()
    def prepare(cls, rows: Sequence[Row], batches: Sequence[Batch], *, teacher: SplitModel) -> HeldOut:
        return cls(rows, batches, [response_states(teacher, batch) for batch in batches])


@dataclass(frozen=True)
class PositionDivergence:
    """What the models disagree about at N response positions: KL(teacher || student) and KL(student || teacher) in
    nats, float32, and whether their most probable classes are the same. On the CPU."""

    kl_ts_N: Tensor
    kl_st_N: Tensor
    agrees_N: Tensor


def response_states(lm: SplitModel | Trainee, batch: Batch) -> Tensor:
    """Hidden states [N, D] that predict the batch's response tokens, with gradient if the model has one."""
    hidden_BTD = lm.hidden(
        batch.input_ids_BT, attention_mask=batch.attention_mask_BT, position_ids=batch.position_ids_BT
    )
    return batch.predicting(hidden_BTD)


@torch.no_grad()
def position_divergence(
    teacher: SplitModel, student: SplitModel, teacher_ND: Tensor, student_ND: Tensor
) -> PositionDivergence:
    """Both models' next-token distributions at temperature 1, compared position by position in slices of N."""
    step = max(1, CHUNK_LOGITS // teacher.vocabulary_size)
    parts: list[tuple[Tensor, Tensor, Tensor]] = [(torch.empty(0), torch.empty(0), torch.empty(0, dtype=torch.bool))]
    for start in range(0, len(teacher_ND), step):
        log_p_NV = log_probs(teacher.head(teacher_ND[start : start + step]))
        log_q_NV = log_probs(student.head(student_ND[start : start + step]))
        difference_NV = log_p_NV - log_q_NV
        kl_ts_N = (log_p_NV.exp() * difference_NV).sum(-1)
        kl_st_N = -(log_q_NV.exp() * difference_NV).sum(-1)
        parts.append((kl_ts_N.cpu(), kl_st_N.cpu(), (log_p_NV.argmax(-1) == log_q_NV.argmax(-1)).cpu()))
    return PositionDivergence(*(torch.cat(column) for column in zip(*parts, strict=True)))


def divergence(
    teacher: SplitModel, student: SplitModel, held_out: HeldOut, states: Sequence[Tensor]
) -> dict[str, float]:
    """`eval/kl_ts`, `eval/kl_st` (nats per token) and `eval/top1_agreement` (a share): means over all held-out response
    tokens. `states` are the student's, per batch."""
    found = [
        position_divergence(teacher, student, teacher_ND, student_ND)
        for teacher_ND, student_ND in zip(held_out.teacher_hidden, states, strict=True)
    ]
    columns = {
        "eval/kl_ts": torch.cat([part.kl_ts_N for part in found]),
        "eval/kl_st": torch.cat([part.kl_st_N for part in found]),
        "eval/top1_agreement": torch.cat([part.agrees_N for part in found]),
    }
    return {name: float(values_N.double().mean()) for name, values_N in columns.items()}


@torch.no_grad()
def evaluate(
    teacher: SplitModel, student: SplitModel, held_out: HeldOut, *, objective: Objective, chunk_positions: int | None
) -> dict[str, float]:
    """`eval/kl_ts`, `eval/kl_st`, `eval/top1_agreement`, and the training objective on held-out rows: `eval/loss`
    and one `eval/loss/<kind>` per term, by the same code as in training.

    Every held-out row is ground truth, so SCRG has no part in it, and nothing in it is drawn: equal models give equal
    numbers. A term that counts nothing in these rows is absent.
    """
    states = [response_states(student, batch) for batch in held_out.batches]
    metrics = divergence(teacher, student, held_out, states)
    counts = objective.counts(held_out.batches)
    totals: dict[str, float] = {}
    for batch, teacher_ND, student_ND in zip(held_out.batches, held_out.teacher_hidden, states, strict=True):
        part = objective.evaluate_from_hidden(
            student_hidden_ND=student_ND,
            student_head=student.head,
            teacher_hidden_ND=teacher_ND,
            teacher_head=teacher.head,
            batch=batch,
            counts=counts,
            vocabulary_size=teacher.vocabulary_size,
            chunk_positions=chunk_positions,
        )
        for name, value in part.items():
            totals[name] = totals.get(name, 0.0) + value
    metrics |= {f"eval/{name}": value for name, value in totals.items() if name.startswith("loss/")}
    metrics["eval/loss"] = metrics.pop("eval/loss/total")
    return metrics
