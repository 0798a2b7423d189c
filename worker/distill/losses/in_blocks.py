"""Two sums over the vocabulary whose intermediate [M, V] and [P, V] tensors are computed again for the gradient instead
of being kept: the peak of DAC-KL + span is then that of plain forward KL.

Knows tensors. Does not know which loss asks. Each function equals the plain expression in its docstring (tested).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

PAIRS_PER_BLOCK = 16


class _Rest(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, log_probs_MV: Tensor, ids_MK: Tensor) -> Tensor:
        rest_M = log_probs_MV.scatter(-1, ids_MK, -math.inf).logsumexp(-1)
        ctx.save_for_backward(log_probs_MV, ids_MK, rest_M)
        return rest_M

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        log_probs_MV, ids_MK, rest_M = ctx.saved_tensors
        # Where nothing is left beside the classes the rest is log 0, and no class of it has a share.
        finite_M1 = rest_M.masked_fill(rest_M == -math.inf, 0)[:, None]
        share_MV = (log_probs_MV - finite_M1).exp_().scatter_(-1, ids_MK, 0)
        return share_MV.mul_(gradients[0][:, None]), None


def log_rest(log_probs_MV: Tensor, ids_MK: Tensor) -> Tensor:
    """`log_probs_MV.scatter(-1, ids_MK, -inf).logsumexp(-1)`: log-probability [M] of all but the named classes."""
    return _Rest.apply(log_probs_MV, ids_MK)


class _PairDistance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q_MV: Tensor, p_MV: Tensor, first_P: Tensor, second_P: Tensor, squared: bool) -> Tensor:
        distance_P = q_MV.new_zeros(len(first_P))
        for block, first, second in _blocks(first_P, second_P):
            difference_XV = _difference(q_MV, p_MV, first, second)
            distance_P[block] = torch.linalg.vector_norm(difference_XV, dim=-1)
        ctx.save_for_backward(q_MV, p_MV, first_P, second_P, distance_P)
        ctx.squared = squared
        return distance_P.square() if squared else distance_P.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        q_MV, p_MV, first_P, second_P, distance_P = ctx.saved_tensors
        scale_P = 2 * gradients[0] if ctx.squared else gradients[0] / distance_P.masked_fill(distance_P == 0, math.inf)
        gradient_MV = torch.zeros_like(q_MV)
        for block, first, second in _blocks(first_P, second_P):
            scaled_XV = _difference(q_MV, p_MV, first, second).mul_(scale_P[block, None])
            gradient_MV.index_add_(0, first, scaled_XV * q_MV[second])
            gradient_MV.index_add_(0, second, scaled_XV.mul_(q_MV[first]))
        return gradient_MV, None, None, None, None


def pair_distance(q_MV: Tensor, p_MV: Tensor, first_P: Tensor, second_P: Tensor, *, squared: bool) -> Tensor:
    """L2 distance [P] of `q[first] * q[second]` from `p[first] * p[second]`, squared or not (then with a gradient of
    zero at zero). `p_MV` is a constant."""
    return _PairDistance.apply(q_MV, p_MV, first_P, second_P, squared)


def _blocks(first_P: Tensor, second_P: Tensor) -> list[tuple[slice, Tensor, Tensor]]:
    starts = range(0, len(first_P), PAIRS_PER_BLOCK)
    slices = [slice(start, start + PAIRS_PER_BLOCK) for start in starts]
    return [(block, first_P[block], second_P[block]) for block in slices]


def _difference(q_MV: Tensor, p_MV: Tensor, first: Tensor, second: Tensor) -> Tensor:
    # Not one fused operation: its rounding would leave equal products a difference, whose direction is noise.
    return (q_MV[first] * q_MV[second]).sub_(p_MV[first] * p_MV[second])
