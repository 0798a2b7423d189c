import math

import pytest
import torch

from app.core.loss_config import ForwardKlLoss
from tests.worker.distill.loss_cases import make_inputs, random_inputs
from worker.distill.losses.divergence import Divergence, class_log_probs, kl, log_mixture, top_classes, with_rest

P = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log()


class Position(Divergence):
    """Says of every position what its first label is."""

    def at_positions(self, inputs):
        return inputs.labels_M.float()


def test_the_positions_of_the_slice_are_summed_and_sampled_ones_count():
    whole = make_inputs(torch.zeros(3, 4), None, labels=[1, 10, 100], ground_truth=[False, True, True])
    cut = type(whole)(**{**vars(whole), "num_positions": 2})
    assert Position(ForwardKlLoss())(cut).total == 11


def test_a_hand_computed_kl():
    q = torch.full((1, 4), 0.25).log()
    # 1/2 log 2 + 1/4 log 1 + 2 * 1/8 log(1/2)
    assert kl(P.exp(), P, q).item() == pytest.approx(math.log(2) / 4)


def test_a_mixture_is_the_log_of_the_mixed_probabilities():
    q = torch.full((1, 4), 0.25).log()
    torch.testing.assert_close(log_mixture(P, q, 0.1).exp(), 0.1 * P.exp() + 0.9 * q.exp())


def test_a_mixture_keeps_what_is_too_small_for_a_float():
    tiny = torch.tensor([-200.0])  # exp(-200) is 0 in float32
    torch.testing.assert_close(log_mixture(tiny, tiny, 0.1), tiny)


def test_the_last_class_is_the_mass_of_all_other_ids():
    torch.testing.assert_close(class_log_probs(P, torch.tensor([[0, 1]])).exp(), torch.tensor([[0.5, 0.25, 0.25]]))


def test_there_is_no_bucket_when_every_id_is_a_class():
    assert class_log_probs(P, torch.tensor([[0, 1, 2, 3]])).shape == (1, 4)


def test_the_bucket_of_a_peaked_row_keeps_its_tiny_mass():
    """`1 - sum` would be 0 here: the top class rounds to probability 1."""
    logits = torch.tensor([[40.0, 0.0, 0.0, -1.0]])
    bucket = class_log_probs(logits.log_softmax(-1), torch.tensor([[0, 1]]))[0, 2]
    assert bucket.item() == pytest.approx(math.log(1 + math.exp(-1)) - 40, abs=1e-4)


def test_classes_are_the_teachers_most_probable_first_for_both_models():
    student = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log()
    teacher = torch.tensor([[0.15, 0.5, 0.05, 0.3]]).log()
    of_teacher, of_student = top_classes(make_inputs(student, teacher), 2)
    torch.testing.assert_close(of_teacher.exp(), torch.tensor([[0.5, 0.3, 0.2]]))
    torch.testing.assert_close(of_student.exp(), torch.tensor([[0.2, 0.4, 0.4]]))


def test_the_rest_is_one_class_and_dropped_ones_hold_nothing():
    classes = with_rest(P, torch.tensor([[True, False, True, False]]))
    torch.testing.assert_close(classes.exp(), torch.tensor([[0.5, 0, 0.125, 0, 0.375]]))


@pytest.mark.parametrize("kept", [True, False])
def test_an_empty_rest_and_a_whole_one_have_finite_gradients(kept):
    inputs = random_inputs(0)
    mask = torch.full((6, 13), kept)
    teacher, student = (with_rest(x, mask) for x in (inputs.teacher_log_probs_MV, inputs.student_log_probs_MV))
    value = kl(teacher.exp(), teacher, student)
    whole = kl(inputs.teacher_probs_MV, inputs.teacher_log_probs_MV, inputs.student_log_probs_MV)
    torch.testing.assert_close(value, whole if kept else torch.zeros(6), atol=1e-6, rtol=1e-5)
    value.sum().backward()
    assert inputs.student_logits_MV.grad.isfinite().all()
