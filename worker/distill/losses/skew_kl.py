"""Skewed Kullback-Leibler divergences: the second argument is mixed with a little of the first.

Knows whole distributions at temperature 1. Does not know when sequences are sampled: that is `schedule.py`.
"""

from __future__ import annotations

from torch import Tensor

from app.core.job_config import SkewKlLoss, SkewReverseKlLoss
from worker.distill.losses.base import LossInputs
from worker.distill.losses.divergence import Divergence, kl, log_mixture


class SkewKl(Divergence):
    """`KL(p || alpha p + (1 - alpha) q)`, p the teacher, q the student. Never above `-log alpha`.

    Ko et al., DistiLLM, arXiv 2402.03898 (alpha-SKL).
    """

    def __init__(self, config: SkewKlLoss) -> None:
        super().__init__(config)
        self._alpha = config.alpha

    def at_positions(self, inputs: LossInputs) -> Tensor:
        teacher_MV = inputs.teacher_log_probs_MV
        mixture_MV = log_mixture(teacher_MV, inputs.student_log_probs_MV, self._alpha)
        return kl(inputs.teacher_probs_MV, teacher_MV, mixture_MV)


class SkewReverseKl(Divergence):
    """`KL(q || alpha q + (1 - alpha) p)`, p the teacher, q the student. Never above `-log alpha`.

    Ko et al., DistiLLM, arXiv 2402.03898 (alpha-SRKL). The mixture has the student's gradient too.
    """

    def __init__(self, config: SkewReverseKlLoss) -> None:
        super().__init__(config)
        self._alpha = config.alpha

    def at_positions(self, inputs: LossInputs) -> Tensor:
        student_MV = inputs.student_log_probs_MV
        mixture_MV = log_mixture(student_MV, inputs.teacher_log_probs_MV, self._alpha)
        return kl(inputs.student_probs_MV, student_MV, mixture_MV)
