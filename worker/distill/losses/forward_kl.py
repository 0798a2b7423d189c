"""Forward Kullback-Leibler divergence KL(teacher || student), the classic distillation loss.

Knows whole distributions at temperature 1. Does not clip them: that is `dac_kl.py`.
"""

from __future__ import annotations

from app.core.job_config import ForwardKlLoss
from worker.distill.losses.base import Loss, LossInputs, LossOutput
from worker.distill.types import Batch


class ForwardKl(Loss):
    """`sum_v p_v log(p_v / q_v)` per response position (Hinton et al., 2015)."""

    def __init__(self, config: ForwardKlLoss) -> None:
        super().__init__()

    def forward(self, inputs: LossInputs) -> LossOutput:
        ratio_MV = inputs.teacher_log_probs_MV - inputs.student_log_probs_MV
        return LossOutput(inputs.total((inputs.teacher_probs_MV * ratio_MV).sum(-1)))

    def count(self, batch: Batch) -> int:
        return batch.num_positions
