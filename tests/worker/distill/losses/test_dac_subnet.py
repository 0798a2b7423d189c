import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from worker.distill.losses.dac_subnet import Mask, QuantileNet, Quantiles, soft_mask
from worker.distill.losses.divergence import class_log_probs

# Classes: target 1/2, then 1/4, and a bucket of 1/4 (ids 2 and 3 together).
P = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log()
TOP = torch.tensor([[0, 1]])
START = (0.02, 0.98)


def mask_of(lower: float, upper: float, *, kappa: float = 1000.0, quantiles: Quantiles = "all") -> Mask:
    bounds = torch.tensor([lower]), torch.tensor([upper])
    return soft_mask(class_log_probs(P, TOP), *bounds, quantiles=quantiles, kappa=kappa)


# Middles of the classes beside the target: 0.5 + 0.25 / 2 = 0.625 and 0.75 + 0.25 / 2 = 0.875.
@pytest.mark.parametrize(
    ("lower", "upper", "kept"),
    [(0.0, 1.0, [1, 1]), (0.0, 0.75, [1, 0]), (0.75, 1.0, [0, 1]), (0.0, 0.5, [0, 0]), (0.0, 0.63, [1, 0])],
)
def test_a_class_is_kept_when_its_middle_lies_between_the_bounds(lower, upper, kept):
    mask = mask_of(lower, upper)
    torch.testing.assert_close(mask.kept_MJ, torch.tensor([kept], dtype=torch.float32), atol=0.01, rtol=0)
    assert mask.share_M.item() == pytest.approx(sum(kept) / 2, abs=0.01)  # both hold half of what is beside the target


# Target 0.9, beside it 0.06, 0.03 and 0.01: shares 0.6, 0.3 and 0.1 of what it leaves, with middles 0.3, 0.75 and 0.95.
@pytest.mark.parametrize(
    ("lower", "upper", "kept", "share"),
    [
        (0.0, 1.0, [1, 1, 1], 1.0),
        (0.0, 0.9, [1, 1, 0], 0.9),
        (0.0, 0.5, [1, 0, 0], 0.6),
        (0.5, 0.9, [0, 1, 0], 0.3),
        (0.0, 0.2, [0, 0, 0], 0.0),
    ],
)
@pytest.mark.parametrize("certainty", [0.9, 1 - 1e-6])
def test_quantiles_beside_the_target_do_not_depend_on_how_sure_the_teacher_is(lower, upper, kept, share, certainty):
    beside = (1 - certainty) * torch.tensor([[0.6, 0.3, 0.1]])
    teacher_MC = torch.cat([torch.tensor([[certainty]]), beside], dim=-1).log()
    bounds = torch.tensor([lower]), torch.tensor([upper])
    mask = soft_mask(teacher_MC, *bounds, quantiles="beside_target", kappa=1000)
    torch.testing.assert_close(mask.kept_MJ, torch.tensor([kept], dtype=torch.float32), atol=0.01, rtol=0)
    assert mask.share_M.item() == pytest.approx(share, abs=0.01)


def test_quantiles_of_all_mass_keep_nothing_beside_a_target_that_holds_more_than_the_upper_bound():
    teacher_MC = torch.tensor([[0.98, 0.015, 0.005]]).log()
    bounds = torch.tensor([0.0]), torch.tensor([0.9])
    assert soft_mask(teacher_MC, *bounds, quantiles="all", kappa=1000).share_M.item() == pytest.approx(0, abs=1e-6)


def test_the_mask_is_a_product_of_two_sigmoids():
    # kappa 4: sigmoid(4 * (0.625 - 0.5)) * sigmoid(4 * (0.75 - 0.625)) = sigmoid(1/2)^2
    kept = mask_of(0.5, 0.75, kappa=4.0).kept_MJ[0, 0].item()
    assert kept == pytest.approx((1 / (1 + math.exp(-0.5))) ** 2)


@given(
    lower=st.floats(0, 1),
    upper=st.floats(0, 1),
    kappa=st.floats(0.1, 2000),
    floor=st.sampled_from([0.01, 0.1, 0.9]),
    quantiles=st.sampled_from(["all", "beside_target"]),
)
def test_kept_and_dropped_make_one_and_the_floor_holds(lower, upper, kappa, floor, quantiles):
    free = mask_of(lower, upper, kappa=kappa, quantiles=quantiles)
    for mask in (free, free.with_floor(floor)):
        torch.testing.assert_close(mask.kept_MJ + mask.log_dropped_MJ.exp(), torch.ones(1, 2))
        assert mask.log_dropped_MJ.isfinite().all()
    assert mask.share_M.item() >= floor * (1 - 1e-6)
    torch.testing.assert_close((mask.kept_MJ / 2).sum(-1), mask.share_M)  # the share is that of the lifted mask


def test_the_floor_lifts_every_class_until_the_share_is_met():
    # Nothing is kept beside the target, so t = floor, and both classes are kept at 0.1.
    held = mask_of(0.0, 0.5).with_floor(0.1)
    torch.testing.assert_close(held.kept_MJ, torch.tensor([[0.1, 0.1]]))
    assert held.held_M.tolist() == [True]


def test_the_floor_leaves_a_mask_alone_that_keeps_enough():
    mask = mask_of(0.0, 0.75)
    lifted = mask.with_floor(0.1)
    assert torch.equal(lifted.kept_MJ, mask.kept_MJ)
    assert torch.equal(lifted.log_dropped_MJ, mask.log_dropped_MJ)
    assert lifted.held_M.tolist() == [False]


def test_a_held_share_cannot_be_lowered_and_gradients_stay_finite():
    teacher_MC = class_log_probs(P, TOP)
    upper = torch.tensor([0.5], requires_grad=True)
    mask = soft_mask(teacher_MC, torch.tensor([0.0]), upper, quantiles="all", kappa=20.0).with_floor(0.5)
    assert mask.held_M.item()
    (slope,) = torch.autograd.grad((mask.kept_MJ / 2).sum(), upper)
    assert slope.item() == pytest.approx(0, abs=1e-6)


def test_a_fully_kept_share_gives_finite_gradients():
    upper = torch.tensor([3.0], requires_grad=True)
    bounds = torch.tensor([-2.0]), upper
    mask = soft_mask(class_log_probs(P, TOP), *bounds, quantiles="all", kappa=1000.0).with_floor(0.1)
    assert mask.share_M.item() == 1
    (mask.kept_MJ.sum() + mask.log_dropped_MJ.sum()).backward()
    assert upper.grad.isfinite().all()


def test_the_network_starts_at_its_start_bounds():
    torch.manual_seed(0)
    log_probs = torch.randn(50, 32).mul(3).log_softmax(-1)
    lower, upper = QuantileNet(top_k=32, hidden_size=16, start=(0.1, 0.8))(log_probs, log_probs)
    torch.testing.assert_close(lower, torch.full((50,), 0.1), atol=0.02, rtol=0)
    torch.testing.assert_close(upper, torch.full((50,), 0.8), atol=0.02, rtol=0)


@given(scale=st.floats(0, 1000))
def test_the_bounds_stay_in_order_whatever_the_network_says(scale):
    torch.manual_seed(0)
    net = QuantileNet(top_k=4, hidden_size=8, start=START)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1 + scale)
    lower, upper = net(-torch.rand(20, 4) * 30, -torch.rand(20, 4) * 30)
    assert ((lower >= 0) & (lower <= upper) & (upper <= 1 + 1e-6)).all()


def test_classes_that_a_small_vocabulary_lacks_are_as_impossible_ones():
    torch.manual_seed(0)
    net = QuantileNet(top_k=4, hidden_size=8, start=START)
    two = torch.tensor([[0.6, 0.4]]).log()
    padded = torch.cat([two, torch.full((1, 2), -50.0)], dim=-1)
    for short, long in zip(net(two, two), net(padded, padded), strict=True):
        torch.testing.assert_close(short, long)


def test_no_gradient_passes_through_the_inputs():
    teacher, student = (torch.randn(3, 4).requires_grad_() for _ in range(2))
    lower, upper = QuantileNet(top_k=4, hidden_size=8, start=START)(teacher, student)
    (lower + upper).sum().backward()
    assert teacher.grad is None
    assert student.grad is None
