"""DAC-KL: the KL divergence of what a learned mask keeps of the teacher's distribution (Eq. 6 to 8).

Knows how the kept classes become a loss, and what f_sub is trained for. Does not know the mask's shape:
that is `dac_subnet.py`, whose letters C (all classes) and J (those beside the target) are used here too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from app.core.loss_config import DacKlLoss
from worker.distill.losses.base import Loss, LossInputs, LossOutput
from worker.distill.losses.dac_subnet import Mask, QuantileNet, soft_mask
from worker.distill.losses.divergence import kl, log_mixture, top_classes
from worker.distill.types import Batch

Normalise = Literal["none", "renorm", "rest_bucket"]
# Nats: a divergence below this is rounding, of which no share can be told.
_NO_DISAGREEMENT = 1e-4


class DacKl(Loss):
    """Distribution adaptive clipping KL (Liu et al., arXiv 2407.10068, Eq. 6-8).

    What f_sub is trained for is a switch [ours], because a network that minimises the loss it masks learns to keep
    almost nothing, whatever the normalisation:
      density   f_sub maximises `gain(m) - price * sum m` with p and q constant (the narrowest band that still holds the
                disagreement); the student minimises the loss with m constant. The gain is `KL_rest(p, q; m)`
                (`density_gain: absolute`), or the share of the divergence *beside* the target that the mask holds
                (`relative`): with p' and q' the distributions given that the target is not taken,
                `KL_rest(p', q'; m) / KL(p', q')`, which a teacher that is nearly certain does not make small.
      minimise  the paper's literal reading: f_sub and the student minimise the same loss.
      fixed     no network, constant bounds.
    """

    def __init__(self, config: DacKlLoss) -> None:
        super().__init__()
        self._config = config
        self.lr_factor = config.subnet_lr_factor
        self.subnet = (
            None
            if config.subnet_objective == "fixed"
            else QuantileNet(
                top_k=config.top_k,
                hidden_size=config.hidden_size,
                start=(config.start_lower, config.start_upper),
            )
        )

    def forward(self, inputs: LossInputs) -> LossOutput:
        config = self._config
        teacher_MC, student_MC = top_classes(inputs, config.top_k)
        lower_M, upper_M = self._bounds(teacher_MC, student_MC)
        own_mask = soft_mask(teacher_MC, lower_M, upper_M, quantiles=config.quantiles, kappa=config.kappa)
        mask = own_mask.with_floor(config.min_kept_mass)
        if config.subnet_objective == "density":
            values_M = clipped_kl(*self._compared(teacher_MC, student_MC), mask.detach(), config.normalise)
            gain_M = self._gain(*self._compared(teacher_MC, student_MC.detach()), own_mask)
            cost_M = config.density_price * own_mask.kept_MJ.sum(-1) - gain_M
            values_M = values_M + (cost_M - cost_M.detach())  # f_sub's gradient, without a trace in the value
        else:
            values_M = clipped_kl(*self._compared(teacher_MC, student_MC), mask, config.normalise)
        return LossOutput(inputs.total(values_M), self._stats(inputs, teacher_MC, mask, lower_M, upper_M))

    def count(self, batch: Batch) -> int:
        return batch.num_positions

    def alarm(self, means: Mapping[str, float]) -> str | None:
        if means["floor_held"] <= self._config.floor_alarm_share:
            return None
        return (
            f"the floor min_kept_mass alone holds {means['floor_held']:.0%} of the positions: the DAC mask has "
            "collapsed (see dac_kl/lower and dac_kl/upper), or the teacher is nearly certain of every token; for a "
            "collapsed mask use quantiles 'beside_target', subnet_objective 'density' or 'fixed', or a lower "
            "density_price"
        )

    def _compared(self, teacher_MC: Tensor, student_MC: Tensor) -> tuple[Tensor, Tensor]:
        """The two distributions whose clipped KL is the loss: Eq. 8 has teacher and student [ours: the others]."""
        config = self._config
        first_MC, second_MC = teacher_MC, student_MC
        if config.divergence in ("reverse", "skew_reverse"):
            first_MC, second_MC = student_MC, teacher_MC
        if config.divergence in ("skew", "skew_reverse"):
            second_MC = log_mixture(first_MC, second_MC, config.alpha)
        return first_MC, second_MC

    def _gain(self, first_MC: Tensor, second_MC: Tensor, mask: Mask) -> Tensor:
        """What f_sub wants to hold under `density`; from 0 (nothing is kept) to 1 (everything) where it is relative."""
        if self._config.density_gain == "absolute":
            return clipped_kl(first_MC, second_MC, mask, "rest_bucket")
        first_MJ, second_MJ = first_MC[:, 1:].log_softmax(-1), second_MC[:, 1:].log_softmax(-1)
        whole_M = kl(first_MJ.exp(), first_MJ, second_MJ)
        return _kept_beside(first_MJ, second_MJ, mask) / whole_M.clamp(min=_NO_DISAGREEMENT)

    def _bounds(self, teacher_MC: Tensor, student_MC: Tensor) -> tuple[Tensor, Tensor]:
        if self.subnet is not None:
            return self.subnet(teacher_MC[:, : self._config.top_k], student_MC[:, : self._config.top_k])
        any_M = teacher_MC[:, 0]
        return torch.full_like(any_M, self._config.fixed_lower), torch.full_like(any_M, self._config.fixed_upper)

    @torch.no_grad()
    def _stats(
        self, inputs: LossInputs, teacher_MC: Tensor, mask: Mask, lower_M: Tensor, upper_M: Tensor
    ) -> dict[str, Tensor]:
        target_M, beside_MJ = teacher_MC[:, 0].exp(), teacher_MC[:, 1:].exp()
        values = {
            "lower": lower_M,
            "upper": upper_M,
            "kept_mass": target_M + (mask.kept_MJ * beside_MJ).sum(-1),
            "kept_mass_beside_target": mask.share_M,
            "kept_classes": 1 + mask.kept_MJ.sum(-1),
            "floor_held": mask.held_M.to(target_M.dtype),
        }
        return {name: inputs.total(values_M) for name, values_M in values.items()}


def clipped_kl(first_MC: Tensor, second_MC: Tensor, mask: Mask, normalise: Normalise) -> Tensor:
    """KL(first || second) [M] of the clipped distributions (Eq. 8), from the log-probabilities of the classes.

    none         Eq. 8 literally: the mask scales both alike, so it cancels inside the logarithm; with p and q,
                 `p_c log(p_c / q_c) + sum_k m_k p_k log(p_k / q_k)`, which can be negative.
    renorm       [ours] both clipped vectors are normalised to sum to one.
    rest_bucket  [ours] what is clipped, of each vector, is one more class; a proper KL, never above the full one.
    """
    ratio_MC = first_MC - second_MC
    target_M = first_MC[:, 0].exp() * ratio_MC[:, 0]
    if normalise == "rest_bucket":
        return target_M + _kept_beside(first_MC[:, 1:], second_MC[:, 1:], mask)
    kept_M = target_M + (first_MC[:, 1:].exp() * mask.kept_MJ * ratio_MC[:, 1:]).sum(-1)
    if normalise == "none":
        return kept_M
    first_kept_M, second_kept_M = _log_kept_mass(first_MC, mask), _log_kept_mass(second_MC, mask)
    return kept_M / first_kept_M.exp() - (first_kept_M - second_kept_M)


def _kept_beside(first_MJ: Tensor, second_MJ: Tensor, mask: Mask) -> Tensor:
    """What the classes beside the target add [M]: the kept ones, and the dropped ones as one class."""
    kept_M = (first_MJ.exp() * mask.kept_MJ * (first_MJ - second_MJ)).sum(-1)
    first_rest_M = (first_MJ + mask.log_dropped_MJ).logsumexp(-1)
    second_rest_M = (second_MJ + mask.log_dropped_MJ).logsumexp(-1)
    return kept_M + first_rest_M.exp() * (first_rest_M - second_rest_M)


def _log_kept_mass(log_probs_MC: Tensor, mask: Mask) -> Tensor:
    log_kept_MJ = mask.kept_MJ.clamp(min=1e-30).log()
    return torch.cat([log_probs_MC[:, :1], log_probs_MC[:, 1:] + log_kept_MJ], dim=-1).logsumexp(-1)
