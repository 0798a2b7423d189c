"""What token-level divergences share: one number per response position, from the two next-token distributions there.

Knows whole distributions at temperature 1, and classes of them (letter C: the teacher's K most probable ids, most
probable first, and one bucket for all other ids; K = V leaves no bucket). Does not know which divergence is taken.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor

from app.core.loss_config import LossConfig
from worker.distill.losses.base import Loss, LossInputs, LossOutput
from worker.distill.losses.in_blocks import log_rest
from worker.distill.types import Batch


class Divergence(Loss):
    """A loss that is summed over all response positions, sampled ones too. A subclass says what one position counts."""

    def __init__(self, config: LossConfig) -> None:
        super().__init__()

    @abstractmethod
    def at_positions(self, inputs: LossInputs) -> Tensor:
        """The divergence [M], in nats unless said otherwise: never negative, and zero for equal distributions."""

    def forward(self, inputs: LossInputs) -> LossOutput:
        return LossOutput(inputs.total(self.at_positions(inputs)))

    def count(self, batch: Batch) -> int:
        return batch.num_positions


def kl(p: Tensor, log_p: Tensor, log_q: Tensor) -> Tensor:
    """`KL(p || q)` over the last axis. `p` stands beside its logarithm because `LossInputs` has both already."""
    return (p * (log_p - log_q)).sum(-1)


def log_mixture(log_p: Tensor, log_q: Tensor, share: float) -> Tensor:
    """`log(share * p + (1 - share) * q)` without leaving log space, where a small p or q would become 0."""
    return torch.logaddexp(log_p + math.log(share), log_q + math.log1p(-share))


def top_classes(inputs: LossInputs, num_top: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities [M, C] of the teacher and of the student for the classes of each position."""
    teacher_MV = inputs.teacher_log_probs_MV
    ids_MK = teacher_MV.topk(min(num_top, teacher_MV.shape[-1]), dim=-1).indices
    return class_log_probs(teacher_MV, ids_MK), class_log_probs(inputs.student_log_probs_MV, ids_MK)


def class_log_probs(log_probs_MV: Tensor, ids_MK: Tensor) -> Tensor:
    """Log-probabilities [M, C] of the classes. The bucket is a logsumexp: `1 - sum` would be <= 0 for peaked rows."""
    top_MK = log_probs_MV.gather(-1, ids_MK)
    if ids_MK.shape[-1] == log_probs_MV.shape[-1]:
        return top_MK
    bucket_M = log_rest(log_probs_MV, ids_MK)
    return torch.cat([top_MK, bucket_M[:, None]], dim=-1)


def with_rest(log_probs_MC: Tensor, kept_MC: Tensor) -> Tensor:
    """Log-probabilities [M, C + 1]: the kept classes in their places, and last the rest, all others as one class.

    Finite stand-ins for log 0 (an empty rest, a class that went to the rest) are the same for every model under the
    same mask, so they add nothing to a divergence and NaN to no gradient.
    """
    nothing = torch.finfo(log_probs_MC.dtype).min
    rest_M = log_probs_MC.masked_fill(kept_MC, nothing).logsumexp(-1)
    return torch.cat([log_probs_MC.masked_fill(~kept_MC, nothing), rest_M[:, None]], dim=-1)
