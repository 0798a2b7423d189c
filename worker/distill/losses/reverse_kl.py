"""Reverse Kullback-Leibler divergence KL(student || teacher): mode-seeking, as on-policy methods use it.

Knows whole distributions at temperature 1. Does not sample: the expectation over the vocabulary is exact.
"""

from __future__ import annotations

from app.core.job_config import ReverseKlLoss
from worker.distill.losses.base import Loss, LossInputs, LossOutput
from worker.distill.types import Batch


class ReverseKl(Loss):
    """`sum_v q_v log(q_v / p_v)` per response position (Gu et al., MiniLLM, 2024)."""

    def __init__(self, config: ReverseKlLoss) -> None:
        super().__init__()

    def forward(self, inputs: LossInputs) -> LossOutput:
        ratio_MV = inputs.student_log_probs_MV - inputs.teacher_log_probs_MV
        return LossOutput(inputs.total((inputs.student_probs_MV * ratio_MV).sum(-1)))

    def count(self, batch: Batch) -> int:
        return batch.num_positions
