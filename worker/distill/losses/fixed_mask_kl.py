"""Forward KL under a fixed mask, top-k or top-p: the controls for the mask that `dac_kl.py` learns.

Knows which classes are kept, hard and from the teacher alone. Does not train anything but the student.

[ours] What is not kept is one more class, of teacher and student alike, as with DAC-KL's `rest_bucket`: so both are
proper divergences (zero at equality, never negative), never above the full KL, and a student that moves mass from the
kept classes to the rest pays for it.
"""

from __future__ import annotations

from torch import Tensor

from app.core.loss_config import TopKKlLoss, TopPKlLoss
from worker.distill.losses.base import LossInputs
from worker.distill.losses.divergence import Divergence, kl, top_classes, with_rest


class TopKKl(Divergence):
    """KL of the teacher's `top_k` most probable ids, and one class of all others."""

    def __init__(self, config: TopKKlLoss) -> None:
        super().__init__(config)
        self._top_k = config.top_k

    def at_positions(self, inputs: LossInputs) -> Tensor:
        teacher_MC, student_MC = top_classes(inputs, self._top_k)
        return kl(teacher_MC.exp(), teacher_MC, student_MC)


class TopPKl(Divergence):
    """KL of the teacher's nucleus, the fewest ids that hold `top_p` of its mass, and one class of all others.

    [ours] A nucleus has `max_classes` ids at most, as many as DAC-KL's network sees: sorting all V is slow.
    """

    def __init__(self, config: TopPKlLoss) -> None:
        super().__init__(config)
        self._top_p, self._max_classes = config.top_p, config.max_classes

    def at_positions(self, inputs: LossInputs) -> Tensor:
        teacher_MC, student_MC = top_classes(inputs, self._max_classes)
        mass_MC = teacher_MC.exp()
        kept_MC = mass_MC.cumsum(-1) - mass_MC < self._top_p  # the mass before a class is below top_p
        teacher_MC, student_MC = with_rest(teacher_MC, kept_MC), with_rest(student_MC, kept_MC)
        return kl(teacher_MC.exp(), teacher_MC, student_MC)
