"""Forward Kullback-Leibler divergence KL(teacher || student), the classic distillation loss.

Knows whole distributions at temperature 1. Does not clip them: that is `dac_kl.py`.
"""

from __future__ import annotations

from torch import Tensor

from worker.distill.losses.base import LossInputs
from worker.distill.losses.divergence import Divergence, kl


class ForwardKl(Divergence):
    """`sum_v p_v log(p_v / q_v)` per response position (Hinton et al., arXiv 1503.02531)."""

    def at_positions(self, inputs: LossInputs) -> Tensor:
        return kl(inputs.teacher_probs_MV, inputs.teacher_log_probs_MV, inputs.student_log_probs_MV)
