import math

import pytest
import torch

from app.core.loss_config import ForwardKlLoss, ReverseKlLoss
from tests.worker.distill.loss_cases import make_inputs, random_inputs
from worker.distill.losses.forward_kl import ForwardKl
from worker.distill.losses.reverse_kl import ReverseKl

# p = (1/2, 1/4, 1/4), q = (1/8, 1/8, 3/4):
#   KL(q || p) = 1/8 log(1/4) + 1/8 log(1/2) + 3/4 log 3 = 3/4 log 3 - 3/8 log 2
P, Q = torch.tensor([[0.5, 0.25, 0.25]]).log(), torch.tensor([[0.125, 0.125, 0.75]]).log()


def test_a_hand_computed_divergence():
    expected = 0.75 * math.log(3) - 0.375 * math.log(2)
    assert ReverseKl(ReverseKlLoss())(make_inputs(Q, P)).total.item() == pytest.approx(expected)


def test_it_is_the_forward_divergence_with_the_models_exchanged():
    inputs = random_inputs(1)
    exchanged = make_inputs(inputs.teacher_logits_MV, inputs.student_logits_MV.detach())
    torch.testing.assert_close(ReverseKl(ReverseKlLoss())(inputs).total, ForwardKl(ForwardKlLoss())(exchanged).total)
