"""The random problems on which both sides compute a loss and its gradient, and our side of it.

Knows tensors and this product's losses. Does not know TRL.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn

from app.core.loss_config import LossConfig
from worker.distill.losses.base import LossInputs
from worker.distill.losses.table import build_loss
from worker.distill.objective import Objective
from worker.distill.types import TokenSequence, make_batch

SHAPES = ((2, 7, 13), (4, 32, 1000), (2, 16, 50257))  # rows, positions, vocabulary
SHARPNESS = (0.5, 3.0, 12.0)  # standard deviation of the logits: from nearly uniform to nearly certain
SEEDS = (0, 1)
WIDTH = 24


@dataclass(frozen=True)
class Problem:
    """Logits [B, T, V] of both models, and which positions carry loss (about two thirds, in each row at least one)."""

    student_BTV: Tensor
    teacher_BTV: Tensor
    mask_BT: Tensor

    @property
    def labels_BT(self) -> Tensor:
        """Any id where loss is counted, -100 elsewhere."""
        return torch.where(self.mask_BT, 1, -100)


@dataclass(frozen=True)
class HiddenProblem:
    """Hidden states [B, T, D] of both models with a head [V, D] each, and which positions carry loss."""

    student_BTD: Tensor
    teacher_BTD: Tensor
    student_head_VD: Tensor
    teacher_head_VD: Tensor
    mask_BT: Tensor


@dataclass(frozen=True)
class Value:
    """A mean over the masked positions, and its gradient with respect to the student's logits (or hidden states)."""

    loss: float
    gradient: Tensor


def problems(dtype: torch.dtype) -> Iterator[Problem]:
    """Every shape with every sharpness and seed."""
    for (rows, columns, size), sharpness, seed in product(SHAPES, SHARPNESS, SEEDS):
        random = torch.Generator().manual_seed(seed)
        student_BTV, teacher_BTV = (
            (sharpness * torch.randn(rows, columns, size, generator=random, dtype=torch.float64)).to(dtype)
            for _ in range(2)
        )
        yield Problem(student_BTV, teacher_BTV, _mask(rows, columns, random))


def hidden_problems(dtype: torch.dtype) -> Iterator[HiddenProblem]:
    for (rows, columns, size), sharpness, seed in product(SHAPES, SHARPNESS, SEEDS):
        random = torch.Generator().manual_seed(seed)
        tensors = [torch.randn(rows, columns, WIDTH, generator=random, dtype=torch.float64) for _ in range(2)]
        tensors += [
            sharpness / WIDTH**0.5 * torch.randn(size, WIDTH, generator=random, dtype=torch.float64) for _ in range(2)
        ]
        student_BTD, teacher_BTD, student_VD, teacher_VD = (tensor.to(dtype) for tensor in tensors)
        yield HiddenProblem(student_BTD, teacher_BTD, student_VD, teacher_VD, _mask(rows, columns, random))


def _mask(rows: int, columns: int, random: torch.Generator) -> Tensor:
    mask_BT = torch.rand(rows, columns, generator=random) < 2 / 3
    mask_BT[:, 0] = True
    return mask_BT


def ours(config: LossConfig, problem: Problem) -> Value:
    """The loss's sum over the masked positions, divided by their number."""
    student_BTV = problem.student_BTV.clone().requires_grad_()
    positions = int(problem.mask_BT.sum())
    inputs = LossInputs(
        student_logits_MV=student_BTV[problem.mask_BT],
        teacher_logits_MV=problem.teacher_BTV[problem.mask_BT],
        labels_M=torch.zeros(positions, dtype=torch.long),
        is_ground_truth_M=torch.ones(positions, dtype=torch.bool),
        num_positions=positions,
        pair_index_P2=torch.zeros(0, 2, dtype=torch.long),
        pair_span_size_P=torch.zeros(0, dtype=torch.long),
    )
    mean = build_loss(config)(inputs).total / positions
    mean.backward()
    assert student_BTV.grad is not None
    return Value(mean.item(), student_BTV.grad)


def ours_from_hidden(config: LossConfig, problem: HiddenProblem) -> Value:
    """As training computes it: through `Objective`, head and loss in slices of 5 positions."""
    objective = Objective([config])
    student_BTD = problem.student_BTD.clone().requires_grad_()
    student_ND, teacher_ND = student_BTD[problem.mask_BT], problem.teacher_BTD[problem.mask_BT]
    rows = [TokenSequence((1,), (1,) * int(mask_T.sum()), is_ground_truth=True) for mask_T in problem.mask_BT]
    batch = make_batch(rows, pad_id=0)
    metrics = objective.backward_from_hidden(
        student_hidden_ND=student_ND,
        student_head=_head(problem.student_head_VD),
        teacher_hidden_ND=teacher_ND,
        teacher_head=_head(problem.teacher_head_VD),
        batch=batch,
        counts=objective.counts([batch]),
        vocabulary_size=len(problem.student_head_VD),
        chunk_positions=5,
    )
    assert student_BTD.grad is not None
    return Value(metrics["loss/total"], student_BTD.grad)


def _head(weight_VD: Tensor) -> nn.Linear:
    head = nn.Linear(weight_VD.shape[1], weight_VD.shape[0], bias=False, dtype=weight_VD.dtype)
    head.weight.data.copy_(weight_VD)
    return head
