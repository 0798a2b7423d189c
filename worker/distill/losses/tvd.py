"""Total variation distance between the teacher's and the student's next-token distribution.

Knows whole distributions at temperature 1. Does not know logarithms: this one is a probability, from 0 to 1, not nats.
"""

from __future__ import annotations

from torch import Tensor

from worker.distill.losses.base import LossInputs
from worker.distill.losses.divergence import Divergence


class Tvd(Divergence):
    """`1/2 sum_v |p_v - q_v|` per response position (Wen et al., f-DISTILL, arXiv 2307.15190)."""

    def at_positions(self, inputs: LossInputs) -> Tensor:
        return (inputs.teacher_probs_MV - inputs.student_probs_MV).abs().sum(-1) / 2
