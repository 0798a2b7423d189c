import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.core.loss_config import SkewKlLoss, SkewReverseKlLoss
from tests.worker.distill.loss_cases import make_inputs, random_inputs
from worker.distill.losses.skew_kl import SkewKl, SkewReverseKl

# p = (1/2, 1/2), q = (1/4, 3/4), alpha = 1/2: both mixtures are (3/8, 5/8).
P, Q = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.25, 0.75]]).log()
BOTH = [(SkewKl, SkewKlLoss), (SkewReverseKl, SkewReverseKlLoss)]


def test_a_hand_computed_skewed_kl():
    expected = 0.5 * math.log(4 / 3) + 0.5 * math.log(4 / 5)
    assert SkewKl(SkewKlLoss(alpha=0.5))(make_inputs(Q, P)).total.item() == pytest.approx(expected)


def test_a_hand_computed_skewed_reverse_kl():
    expected = 0.25 * math.log(2 / 3) + 0.75 * math.log(6 / 5)
    assert SkewReverseKl(SkewReverseKlLoss(alpha=0.5))(make_inputs(Q, P)).total.item() == pytest.approx(expected)


def test_alpha_is_the_share_of_the_first_argument():
    # alpha = 1/10: the mixtures are (0.05 + 0.225, 0.05 + 0.675) and (0.025 + 0.45, 0.075 + 0.45).
    skewed = SkewKl(SkewKlLoss())(make_inputs(Q, P)).total.item()
    reverse = SkewReverseKl(SkewReverseKlLoss())(make_inputs(Q, P)).total.item()
    assert skewed == pytest.approx(0.5 * math.log(0.5 / 0.275) + 0.5 * math.log(0.5 / 0.725))
    assert reverse == pytest.approx(0.25 * math.log(0.25 / 0.475) + 0.75 * math.log(0.75 / 0.525))


def test_one_is_the_other_with_the_models_exchanged():
    inputs = random_inputs(1)
    exchanged = make_inputs(inputs.teacher_logits_MV, inputs.student_logits_MV.detach())
    torch.testing.assert_close(SkewReverseKl(SkewReverseKlLoss())(inputs).total, SkewKl(SkewKlLoss())(exchanged).total)


@pytest.mark.parametrize(("loss", "config"), BOTH)
@given(seed=st.integers(0, 10**6), alpha=st.floats(0.01, 0.99))
def test_it_is_bounded_where_a_plain_kl_is_not(loss, config, seed, alpha):
    assert loss(config(alpha=alpha))(random_inputs(seed)).total.item() <= -6 * math.log(alpha) + 1e-5


@pytest.mark.parametrize(("loss", "config"), BOTH)
def test_models_that_contradict_each_other_reach_the_bound(loss, config):
    certain = make_inputs(torch.tensor([[90.0, -90.0]]), torch.tensor([[-90.0, 90.0]]))
    assert loss(config())(certain).total.item() == pytest.approx(-math.log(0.1))
