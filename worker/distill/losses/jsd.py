"""Generalised Jensen-Shannon divergence: both models against their mixture.

Knows whole distributions at temperature 1. Does not know where the sequences come from (GKD mixes them).
"""

from __future__ import annotations

from torch import Tensor

from app.core.loss_config import JsdLoss
from worker.distill.losses.base import LossInputs
from worker.distill.losses.divergence import Divergence, kl, log_mixture


class Jsd(Divergence):
    """`beta KL(p || m) + (1 - beta) KL(q || m)` with `m = beta p + (1 - beta) q`, p the teacher, q the student.

    Agarwal et al., GKD, arXiv 2306.13649, Eq. 1. Bounded by the entropy of (beta, 1 - beta). Its gradient, over beta,
    tends to that of forward KL as beta tends to 0; over 1 - beta, to that of reverse KL as beta tends to 1.
    """

    def __init__(self, config: JsdLoss) -> None:
        super().__init__(config)
        self._beta = config.beta

    def at_positions(self, inputs: LossInputs) -> Tensor:
        teacher_MV, student_MV = inputs.teacher_log_probs_MV, inputs.student_log_probs_MV
        mixture_MV = log_mixture(teacher_MV, student_MV, self._beta)
        of_teacher_M = kl(inputs.teacher_probs_MV, teacher_MV, mixture_MV)
        of_student_M = kl(inputs.student_probs_MV, student_MV, mixture_MV)
        return self._beta * of_teacher_M + (1 - self._beta) * of_student_M
