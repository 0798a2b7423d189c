"""The recomputing sums equal the plain expressions in their docstrings, gradients included, at the edges too."""

from __future__ import annotations

import math

import pytest
import torch

from worker.distill.losses.in_blocks import PAIRS_PER_BLOCK, log_rest, pair_distance


def gradient_of(value: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    weight = torch.linspace(0.5, 2, len(value), dtype=value.dtype)
    (gradient,) = torch.autograd.grad((value * weight).sum(), of, retain_graph=True)
    return gradient


def test_log_rest_is_the_logsumexp_of_the_other_classes() -> None:
    torch.manual_seed(0)
    log_probs_MV = (torch.randn(6, 40, dtype=torch.float64) * 4).log_softmax(-1).requires_grad_()
    ids_MK = log_probs_MV.topk(5, dim=-1).indices
    plain_M = log_probs_MV.scatter(-1, ids_MK, -math.inf).logsumexp(-1)
    found_M = log_rest(log_probs_MV, ids_MK)
    torch.testing.assert_close(found_M, plain_M)
    torch.testing.assert_close(gradient_of(found_M, log_probs_MV), gradient_of(plain_M, log_probs_MV))


def test_an_empty_rest_has_no_gradient() -> None:
    log_probs_MV = torch.tensor([[0.0, -math.inf, -math.inf]], requires_grad=True)
    found_M = log_rest(log_probs_MV, torch.tensor([[0]]))
    assert found_M.tolist() == [-math.inf]
    assert torch.equal(torch.autograd.grad(found_M.sum(), log_probs_MV)[0], torch.zeros(1, 3))


@pytest.mark.parametrize("pairs", [0, 1, PAIRS_PER_BLOCK, 2 * PAIRS_PER_BLOCK + 3])
@pytest.mark.parametrize("squared", [True, False])
def test_pair_distance_is_the_distance_of_the_products(pairs: int, squared: bool) -> None:
    torch.manual_seed(1)
    p_MV, logits_MV = torch.randn(pairs + 1, 30, dtype=torch.float64).softmax(-1), torch.randn(pairs + 1, 30).double()
    logits_MV.requires_grad_()
    q_MV = logits_MV.softmax(-1)
    first_P = torch.arange(pairs)
    if not pairs:
        assert pair_distance(q_MV, p_MV, first_P, first_P, squared=squared).tolist() == []
        return
    difference_PV = q_MV[first_P] * q_MV[first_P + 1] - p_MV[first_P] * p_MV[first_P + 1]
    plain_P = difference_PV.square().sum(-1) if squared else torch.linalg.vector_norm(difference_PV, dim=-1)
    found_P = pair_distance(q_MV, p_MV, first_P, first_P + 1, squared=squared)
    torch.testing.assert_close(found_P, plain_P)
    torch.testing.assert_close(gradient_of(found_P, logits_MV), gradient_of(plain_P, logits_MV))


@pytest.mark.parametrize("squared", [True, False])
def test_equal_distributions_have_no_distance_and_no_gradient(squared: bool) -> None:
    q_MV = torch.randn(3, 8).softmax(-1).requires_grad_()
    found_P = pair_distance(q_MV, q_MV.detach(), torch.tensor([0, 1]), torch.tensor([1, 2]), squared=squared)
    assert found_P.tolist() == [0, 0]
    assert torch.equal(gradient_of(found_P, q_MV), torch.zeros(3, 8))
