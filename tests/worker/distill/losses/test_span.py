import math

import pytest
import torch

from app.core.loss_config import SpanLoss
from tests.worker.distill.loss_cases import make_inputs, random_inputs
from worker.distill.losses.span import Span

# Three positions, two ids. Pairs (0, 1) and (1, 2).
#   teacher p: (1/2, 1/2), (1/2, 1/2), (1, 0)         products (1/4, 1/4) and (1/2, 0)
#   student q: (1/2, 1/2), (1/4, 3/4), (1/2, 1/2)     products (1/8, 3/8) and (1/8, 3/8)
#   differences (-1/8, 1/8) and (-3/8, 3/8); squared lengths 2/64 and 18/64
TEACHER = torch.tensor([[0.5, 0.5], [0.5, 0.5], [1.0, 1e-30]]).log()
STUDENT = torch.tensor([[0.5, 0.5], [0.25, 0.75], [0.5, 0.5]]).log()
PAIRS = [(0, 1), (1, 2)]


def total(config: SpanLoss, **case) -> float:
    return Span(config)(make_inputs(STUDENT, TEACHER, **case)).total.item()


def test_squared_distances_of_hadamard_products_are_summed_over_pairs():
    assert total(SpanLoss(), pairs=PAIRS, span_sizes=[2, 2]) == pytest.approx(20 / 64)


def test_plain_distances():
    expected = math.sqrt(2 / 64) + math.sqrt(18 / 64)
    assert total(SpanLoss(distance="l2"), pairs=PAIRS, span_sizes=[2, 2]) == pytest.approx(expected)


def test_an_average_over_spans_averages_inside_each_span_first():
    one_span = total(SpanLoss(average="spans"), pairs=PAIRS, span_sizes=[2, 2])
    two_spans = total(SpanLoss(average="spans"), pairs=PAIRS, span_sizes=[1, 1])
    assert one_span == pytest.approx(10 / 64)  # one span: (2/64 + 18/64) / 2
    assert two_spans == pytest.approx(20 / 64)  # two spans of one pair each


def test_only_the_given_pairs_count():
    assert total(SpanLoss(), pairs=[(1, 2)]) == pytest.approx(18 / 64)


@pytest.mark.parametrize("distance", ["l2_squared", "l2"])
def test_the_gradient_at_zero_distance_is_zero_and_not_nan(distance):
    logits = TEACHER.clone().requires_grad_()
    Span(SpanLoss(distance=distance))(make_inputs(logits, TEACHER, pairs=PAIRS)).total.backward()
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_it_agrees_with_a_loop_over_pairs_in_double():
    inputs = random_inputs(2, dtype=torch.float64)
    p, q = inputs.teacher_logits_MV.softmax(-1), inputs.student_logits_MV.detach().softmax(-1)
    expected = sum(
        float(p[i, v] * p[j, v] - q[i, v] * q[j, v]) ** 2
        for i, j in inputs.pair_index_P2.tolist()
        for v in range(p.shape[1])
    )
    assert Span(SpanLoss())(inputs).total.item() == pytest.approx(expected, rel=1e-12)
