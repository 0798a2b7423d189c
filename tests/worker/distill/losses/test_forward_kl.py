import math

import pytest
import torch

from app.core.loss_config import ForwardKlLoss
from tests.worker.distill.loss_cases import make_inputs, random_inputs
from worker.distill.losses.forward_kl import ForwardKl

# p = (1/2, 1/4, 1/4), q = (1/4, 1/4, 1/2):
#   KL(p || q) = 1/2 log 2 + 1/4 log 1 + 1/4 log(1/2) = 1/4 log 2
P, Q = torch.tensor([[0.5, 0.25, 0.25]]).log(), torch.tensor([[0.25, 0.25, 0.5]]).log()


def test_a_hand_computed_divergence():
    assert ForwardKl(ForwardKlLoss())(make_inputs(Q, P)).total.item() == pytest.approx(math.log(2) / 4)


def test_the_gradient_is_student_minus_teacher():
    logits = Q.clone().requires_grad_()
    ForwardKl(ForwardKlLoss())(make_inputs(logits, P)).total.backward()
    torch.testing.assert_close(logits.grad, Q.exp() - P.exp())


def test_it_agrees_with_torch():
    inputs = random_inputs(1)
    reference = torch.nn.functional.kl_div(
        inputs.student_log_probs_MV, inputs.teacher_log_probs_MV, log_target=True, reduction="sum"
    )
    torch.testing.assert_close(ForwardKl(ForwardKlLoss())(inputs).total, reference)
