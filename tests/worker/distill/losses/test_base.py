import pytest
import torch

from tests.worker.distill.loss_cases import make_inputs, random_inputs


def test_probabilities_are_computed_once_and_shared():
    inputs = random_inputs(0)
    assert inputs.student_log_probs_MV is inputs.student_log_probs_MV
    assert inputs.teacher_probs_MV is inputs.teacher_probs_MV


@pytest.mark.parametrize(
    ("given", "computed"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)],
)
def test_probabilities_are_float32_and_double_stays_double(given, computed):
    inputs = random_inputs(0, dtype=given)
    assert inputs.student_probs_MV.dtype == computed
    assert inputs.teacher_log_probs_MV.dtype == computed
    torch.testing.assert_close(inputs.student_probs_MV.sum(-1), torch.ones(6, dtype=computed))


def test_a_total_leaves_out_the_position_that_only_completes_a_pair():
    whole = make_inputs(torch.zeros(3, 4), torch.zeros(3, 4))
    cut = type(whole)(**{**vars(whole), "num_positions": 2})
    values_M = torch.tensor([1.0, 10.0, 100.0])
    assert whole.total(values_M) == 111
    assert cut.total(values_M) == 11


def test_reading_a_teacher_that_is_not_there_is_a_programming_error():
    with pytest.raises(AssertionError, match="needs_teacher"):
        _ = make_inputs(torch.zeros(1, 4), None).teacher_probs_MV


def test_an_id_that_is_ruled_out_has_no_probability_and_a_finite_logarithm():
    logits = torch.tensor([[0.0, -torch.inf, 1.0]], requires_grad=True)
    inputs = make_inputs(logits, logits.detach())
    assert inputs.student_probs_MV[0, 1] == 0
    assert inputs.student_log_probs_MV.isfinite().all()
    inputs.student_log_probs_MV[0, 0].backward()
    without = torch.tensor([[0.0, 1.0]], requires_grad=True)
    without.log_softmax(-1)[0, 0].backward()
    torch.testing.assert_close(logits.grad[:, [0, 2]], without.grad)
    assert logits.grad[0, 1] == 0
