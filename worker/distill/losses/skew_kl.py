"""Skewed Kullback-Leibler divergences: the second argument is mixed with a little of the first.

Knows whole distributions at temperature 1. Does not know when sequences are sampled: that is `schedule.py`.
"""

from __future__ import annotations

from torch import Tensor

from app.core.loss_config import SkewKlLoss, SkewReverseKlLoss
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
        teacher_MV, student_MV = inputs.teacher_log_probs_MV, inputs.student_log_probs_MV
        return _skewed(inputs.teacher_probs_MV, teacher_MV, student_MV, self._alpha)


class SkewReverseKl(Divergence):
    """`KL(q || alpha q + (1 - alpha) p)`, p the teacher, q the student. Never above `-log alpha`.

    Ko et al., DistiLLM, arXiv 2402.03898 (alpha-SRKL). The mixture has the student's gradient too.
    """

    def __init__(self, config: SkewReverseKlLoss) -> None:
        super().__init__(config)
        self._alpha = config.alpha

    def at_positions(self, inputs: LossInputs) -> Tensor:
        teacher_MV, student_MV = inputs.teacher_log_probs_MV, inputs.student_log_probs_MV
        return _skewed(inputs.student_probs_MV, student_MV, teacher_MV, self._alpha)


def _skewed(first: Tensor, log_first: Tensor, log_second: Tensor, alpha: float) -> Tensor:
    return kl(first, log_first, log_mixture(log_first, log_second, alpha))
