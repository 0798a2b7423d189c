"""The contract of a loss: what it is given, what it returns, and what it counts.

Knows slices of response positions. Does not know models, batches' rows, weights or what the sums are divided by:
`objective.py` counts over the whole accumulation window and divides once, so that the size of a micro-batch (or of
a slice) cannot change a gradient.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn

from worker.distill.types import Batch


@dataclass(frozen=True)
class LossInputs:
    """One slice of response positions. Letters of the names: see `worker.distill.types`.

    The first `num_positions` of the M positions belong to this slice; one more may follow that only completes the
    last span pair, and whose own loss is counted by the next slice. Logits have any float dtype and are cut to the
    shared vocabulary; teacher tensors carry no gradient. Probabilities are computed once, when first asked for, in
    float32 (double stays double), and are shared by all losses.
    """

    student_logits_MV: Tensor
    teacher_logits_MV: Tensor | None
    labels_M: Tensor
    is_ground_truth_M: Tensor
    num_positions: int
    pair_index_P2: Tensor
    pair_span_size_P: Tensor

    @cached_property
    def student_log_probs_MV(self) -> Tensor:
        return log_probs(self.student_logits_MV)

    @cached_property
    def student_probs_MV(self) -> Tensor:
        return self.student_log_probs_MV.exp()

    @cached_property
    def teacher_log_probs_MV(self) -> Tensor:
        assert self.teacher_logits_MV is not None, "a loss that reads the teacher sets needs_teacher"
        return log_probs(self.teacher_logits_MV)

    @cached_property
    def teacher_probs_MV(self) -> Tensor:
        return self.teacher_log_probs_MV.exp()

    def total(self, values_M: Tensor) -> Tensor:
        """The sum of `values_M` over the slice's own positions."""
        return values_M[: self.num_positions].sum()


@dataclass(frozen=True)
class LossOutput:
    """`total`: scalar sum, connected to the graph and zero when nothing is counted. `stats`: detached sums."""

    total: Tensor
    stats: Mapping[str, Tensor] = field(default_factory=dict)


class Loss(nn.Module, ABC):
    """A term of the objective. A module, because a term may own a network that trains and is checkpointed with it."""

    needs_teacher: ClassVar[bool] = True
    # Learning rate of the term's own parameters, as a multiple of the student's.
    lr_factor: float = 1.0

    @abstractmethod
    def forward(self, inputs: LossInputs) -> LossOutput:
        """Sums over what `count` counts, in float32 (double for double logits)."""

    @abstractmethod
    def count(self, batch: Batch) -> int:
        """How many things of `batch` the term sums over: what its total and its stats are divided by."""

    def alarm(self, means: Mapping[str, float]) -> str | None:
        """What a user should know about these means of the stats, if anything."""
        return None


def log_probs(logits_MV: Tensor) -> Tensor:
    """Next-token log-probabilities, in float32 or wider.

    An id with logit -inf has probability 0 and a finite stand-in for its logarithm, so that `0 * (log 0 - log 0)` is 0
    and not NaN: ids that both models rule out change nothing.
    """
    wide = torch.float64 if logits_MV.dtype == torch.float64 else torch.float32
    log_probs_MV = torch.log_softmax(logits_MV, dim=-1, dtype=wide)
    # In place and unseen by autograd: its backward pass reads this result as a probability only, which is still 0.
    log_probs_MV.data.clamp_(min=torch.finfo(wide).min)
    return log_probs_MV
