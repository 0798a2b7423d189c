import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.core.loss_config import DacKlLoss, ForwardKlLoss, TopKKlLoss, TopPKlLoss
from tests.worker.distill.loss_cases import make_inputs, random_inputs
from worker.distill.losses.dac_kl import DacKl
from worker.distill.losses.fixed_mask_kl import TopKKl, TopPKl
from worker.distill.losses.forward_kl import ForwardKl

# The teacher's order is ids 2, 0, 3, 1; the student is uniform.
P, Q = torch.tensor([[0.25, 0.0625, 0.5, 0.1875]]).log(), torch.full((1, 4), 0.25).log()
ONE = 0.5 * math.log(2) + 0.5 * math.log(0.5 / 0.75)  # id 2; the rest: 1/2 against 3/4
TWO = 0.5 * math.log(2) + 0.25 * math.log(0.25 / 0.5)  # ids 2 and 0 (1/4 log 1); the rest: 1/4 against 1/2
THREE = 0.5 * math.log(2) + 0.1875 * math.log(0.75) + 0.0625 * math.log(0.25)  # the rest is id 1 alone: the full KL


@pytest.mark.parametrize(("top_k", "expected"), [(1, ONE), (2, TWO), (3, THREE), (4, THREE), (99, THREE)])
def test_hand_computed_top_k(top_k, expected):
    assert TopKKl(TopKKlLoss(top_k=top_k))(make_inputs(Q, P)).total.item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("top_p", "expected"),
    # A class is kept while the mass before it is below top_p: 0, 0.5, 0.75, 0.9375.
    [(0.01, ONE), (0.5, ONE), (0.51, TWO), (0.75, TWO), (0.8, THREE), (0.95, THREE), (1.0, THREE)],
)
def test_hand_computed_top_p(top_p, expected):
    assert TopPKl(TopPKlLoss(top_p=top_p))(make_inputs(Q, P)).total.item() == pytest.approx(expected)


def test_a_nucleus_stops_at_max_classes():
    assert TopPKl(TopPKlLoss(top_p=1.0, max_classes=2))(make_inputs(Q, P)).total.item() == pytest.approx(TWO)


def test_the_rest_is_treated_as_by_dac_kl_with_bounds_that_keep_the_same_classes():
    # Middles of the classes beside the target: 0.625, 0.84, 0.97; the upper bound 0.75 keeps the first.
    bounds = {"quantiles": "all", "fixed_lower": 0, "fixed_upper": 0.75}
    hard = DacKlLoss(subnet_objective="fixed", kappa=1e4, min_kept_mass=0.01, **bounds)
    expected = DacKl(hard)(make_inputs(Q, P)).total.item()
    assert TopKKl(TopKKlLoss(top_k=2))(make_inputs(Q, P)).total.item() == pytest.approx(expected, abs=1e-6)


@given(seed=st.integers(0, 10**6), top_k=st.integers(1, 15), top_p=st.floats(0.01, 1))
def test_a_mask_never_adds_to_the_full_divergence(seed, top_k, top_p):
    inputs = random_inputs(seed)
    full = ForwardKl(ForwardKlLoss())(inputs).total + 1e-4
    assert TopKKl(TopKKlLoss(top_k=top_k))(inputs).total <= full
    assert TopPKl(TopPKlLoss(top_p=top_p))(inputs).total <= full
