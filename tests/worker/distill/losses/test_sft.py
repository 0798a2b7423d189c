import math

import pytest
import torch

from app.core.loss_config import SftLoss
from tests.worker.distill.loss_cases import make_inputs
from worker.distill.losses.sft import Sft

# q = (1/2, 1/4, 1/4) at both positions; labels 0 and 2: -log q = log 2 and log 4.
Q = torch.tensor([[0.5, 0.25, 0.25]] * 2).log()


def test_cross_entropy_of_ground_truth_rows():
    inputs = make_inputs(Q, None, labels=[0, 2], ground_truth=[False, True])
    assert Sft(SftLoss())(inputs).total.item() == pytest.approx(math.log(4))


def test_cross_entropy_of_all_rows():
    inputs = make_inputs(Q, None, labels=[0, 2], ground_truth=[False, True])
    assert Sft(SftLoss(rows="all"))(inputs).total.item() == pytest.approx(math.log(2) + math.log(4))


def test_the_gradient_is_probabilities_minus_label():
    logits = Q.clone().requires_grad_()
    Sft(SftLoss())(make_inputs(logits, None, labels=[0, 2])).total.backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[-0.5, 0.25, 0.25], [0.5, 0.25, -0.75]]))


def test_it_agrees_with_torch():
    logits, labels = torch.randn(7, 11), torch.randint(11, (7,))
    ours = Sft(SftLoss())(make_inputs(logits, None, labels=labels.tolist())).total
    torch.testing.assert_close(ours, torch.nn.functional.cross_entropy(logits, labels, reduction="sum"))
