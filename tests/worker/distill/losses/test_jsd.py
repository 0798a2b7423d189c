import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.core.loss_config import ForwardKlLoss, JsdLoss, ReverseKlLoss
from tests.worker.distill.loss_cases import make_inputs, random_inputs
from worker.distill.losses.forward_kl import ForwardKl
from worker.distill.losses.jsd import Jsd
from worker.distill.losses.reverse_kl import ReverseKl

# p = (3/4, 1/4), q = (1/4, 3/4).
P, Q = torch.tensor([[0.75, 0.25]]).log(), torch.tensor([[0.25, 0.75]]).log()


def jsd(student, teacher, beta: float) -> float:
    return Jsd(JsdLoss(beta=beta))(make_inputs(student, teacher)).total.item()


def test_a_hand_computed_divergence():
    # m = (1/2, 1/2): KL(p || m) = KL(q || m) = 3/4 log(3/2) + 1/4 log(1/2)
    assert jsd(Q, P, 0.5) == pytest.approx(0.75 * math.log(1.5) - 0.25 * math.log(2))


def test_beta_is_the_teachers_share():
    # beta 1/4: m = 1/4 p + 3/4 q = (3/8, 5/8)
    #   KL(p || m) = 3/4 log 2 + 1/4 log(2/5), KL(q || m) = 1/4 log(2/3) + 3/4 log(6/5)
    of_teacher = 0.75 * math.log(2) + 0.25 * math.log(0.4)
    of_student = 0.25 * math.log(2 / 3) + 0.75 * math.log(1.2)
    assert jsd(Q, P, 0.25) == pytest.approx(0.25 * of_teacher + 0.75 * of_student)


@pytest.mark.parametrize(("beta", "expected"), [(0.1, 0.20029861), (0.5, 0.51274937), (0.9, 0.20514601)])
def test_it_has_the_values_of_trl(beta, expected):
    """`GKDTrainer.generalized_jsd_loss(student, teacher, beta=beta, reduction="sum")` of TRL 1.16.0."""
    student = torch.tensor([[0.0, 1.0, 2.0, -1.0], [3.0, 0.0, 0.5, 0.0]])
    teacher = torch.tensor([[1.0, 1.0, 0.0, -2.0], [0.0, 2.0, 0.5, 1.0]])
    assert jsd(student, teacher, beta) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("beta", "scale", "limit"),
    [(1e-6, 1e6, ForwardKl(ForwardKlLoss())), (1 - 1e-6, 1e6, ReverseKl(ReverseKlLoss()))],
)
def test_its_ends_are_forward_and_reverse_kl(beta, scale, limit):
    inputs = random_inputs(1, dtype=torch.float64)
    assert scale * Jsd(JsdLoss(beta=beta))(inputs).total.item() == pytest.approx(limit(inputs).total.item(), rel=1e-3)


@given(seed=st.integers(0, 10**6), beta=st.floats(0.01, 0.99))
def test_it_is_bounded_by_the_entropy_of_the_shares(seed, beta):
    total = Jsd(JsdLoss(beta=beta))(random_inputs(seed)).total.item()
    assert total <= -6 * (beta * math.log(beta) + (1 - beta) * math.log(1 - beta)) + 1e-5
