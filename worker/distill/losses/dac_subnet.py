"""f_sub and the soft mask of DAC-KL: which of a position's classes are kept (Eq. 6 and 7).

Knows log-probabilities of a position's classes. Does not know the loss that is computed from what is kept.

Of a position's classes (letter C: `divergence.py`) the first is the *target class*; J = C - 1 are those *beside* it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, pad

# [ours] Log-probabilities below this look alike to f_sub; it is also what stands for classes that V does not have.
_LOWEST = -20.0
Quantiles = Literal["all", "beside_target"]


class QuantileNet(nn.Module):
    """f_sub: two quantiles of the teacher's mass from the top classes of both models (Eq. 6).

    [ours] Two hidden layers and two sigmoids s1, s2; `lower = s1`, `upper = s1 + (1 - s1) * s2`, so that they stay in
    order. The output bias makes them start at about `start`, both inside (0, 1).
    """

    def __init__(self, *, top_k: int, hidden_size: int, start: tuple[float, float]) -> None:
        super().__init__()
        self._top_k = top_k
        self.layers = nn.Sequential(
            nn.Linear(2 * top_k, hidden_size),
            nn.GELU(),
            nn.Linear(hidden_size, hidden_size),
            nn.GELU(),
            nn.Linear(hidden_size, 2),
        )
        output = self.layers[-1]
        assert isinstance(output, nn.Linear)
        lower, upper = start
        nn.init.normal_(output.weight, std=0.01)
        with torch.no_grad():
            output.bias.copy_(torch.tensor([lower, (upper - lower) / (1 - lower)]).logit())

    def forward(self, teacher_MK: Tensor, student_MK: Tensor) -> tuple[Tensor, Tensor]:
        """`lower` and `upper` [M]. The inputs are constants to f_sub: no gradient passes through them to a model."""
        features_M2K = torch.cat([self._features(teacher_MK), self._features(student_MK)], dim=-1)
        first_M, second_M = self.layers(features_M2K).sigmoid().unbind(-1)
        return first_M, first_M + (1 - first_M) * second_M

    def _features(self, log_probs_MK: Tensor) -> Tensor:
        missing = self._top_k - log_probs_MK.shape[-1]
        return pad(log_probs_MK.detach().clamp(min=_LOWEST), (0, missing), value=_LOWEST) * (-2 / _LOWEST) + 1


@dataclass(frozen=True)
class Mask:
    """How much of each class beside the target is kept. The target class itself is always kept whole (Eq. 7)."""

    kept_MJ: Tensor
    # log(1 - kept), without the cancellation
    log_dropped_MJ: Tensor
    # Share of the teacher's mass beside the target class that is kept.
    share_M: Tensor
    # Whether the floor had to lift this position.
    held_M: Tensor

    def detach(self) -> Mask:
        return Mask(*(tensor.detach() for tensor in vars(self).values()))

    def with_floor(self, floor: float) -> Mask:
        """The mask with at least `floor` of the teacher's mass beside the target kept [ours].

        Where less is kept, every class is lifted by the same rule `kept + t * (1 - kept)` with the t that makes the
        share exactly `floor`. t is differentiated too, so the gradient is the true one of the value: a position that
        the floor holds gives f_sub no way to keep less, and only the shape of its mask still matters.

        The floor is not on *total* kept mass: the target class alone may hold 0.97 of it, so a mask that keeps
        nothing else would pass.
        """
        # t = 0 where enough is kept; the clamp of the denominator keeps that branch's gradient finite.
        lift_M = ((floor - self.share_M) / (1 - self.share_M).clamp(min=1 - floor)).clamp(min=0)[:, None]
        return Mask(
            kept_MJ=self.kept_MJ + lift_M * (1 - self.kept_MJ),
            log_dropped_MJ=self.log_dropped_MJ + torch.log1p(-lift_M),
            share_M=self.share_M.clamp(min=floor),
            held_M=self.share_M < floor,
        )


def soft_mask(teacher_MC: Tensor, lower_M: Tensor, upper_M: Tensor, *, quantiles: Quantiles, kappa: float) -> Mask:
    """`sigmoid(kappa * (x - lower)) * sigmoid(kappa * (upper - x))` for the classes beside the target (Eq. 7).

    [ours] x is the teacher's cumulative mass at the *middle* of a class, most probable first. So a class is kept when
    more than half of it lies between the bounds. Taken up to the end of the class, x would drop a class of any size
    that reaches over `upper`; taken before it, keep one that only begins below `upper`. What x accumulates:

    beside_target  the mass beside the target, as shares of it: bounds mean the same however sure the teacher is.
    all            all the mass, the target's first: where the target holds more than `upper`, nothing can be kept.
    """
    share_MJ = teacher_MC[:, 1:].softmax(-1)
    if quantiles == "all":
        mass_MC = teacher_MC.exp()
        x_MJ = (mass_MC.cumsum(-1) - mass_MC / 2)[:, 1:]
    else:
        x_MJ = share_MJ.cumsum(-1) - share_MJ / 2
    above_MJ, below_MJ = kappa * (x_MJ - lower_M[:, None]), kappa * (upper_M[:, None] - x_MJ)
    kept_MJ = above_MJ.sigmoid() * below_MJ.sigmoid()
    log_dropped_MJ = torch.logaddexp(logsigmoid(-above_MJ), logsigmoid(above_MJ) + logsigmoid(-below_MJ))
    share_M = (share_MJ * kept_MJ).sum(-1)
    return Mask(kept_MJ, log_dropped_MJ, share_M, torch.zeros_like(share_M, dtype=torch.bool))
