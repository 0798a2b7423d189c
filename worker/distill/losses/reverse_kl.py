"""Reverse Kullback-Leibler divergence KL(student || teacher): mode-seeking, as on-policy methods use it.

Knows whole distributions at temperature 1. Does not sample: the expectation over the vocabulary is exact.
"""

from __future__ import annotations

from torch import Tensor

from worker.distill.losses.base import LossInputs
from worker.distill.losses.divergence import Divergence, kl


class ReverseKl(Divergence):
    """`sum_v q_v log(q_v / p_v)` per response position (Gu et al., MiniLLM, arXiv 2306.08543)."""

    def at_positions(self, inputs: LossInputs) -> Tensor:
        return kl(inputs.student_probs_MV, inputs.student_log_probs_MV, inputs.teacher_log_probs_MV)
