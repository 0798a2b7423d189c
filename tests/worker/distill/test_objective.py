import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.errors import NonFiniteLoss, NothingToLearn
from app.core.loss_config import DacKlLoss, ForwardKlLoss, ReverseKlLoss, SftLoss, SpanLoss
from tests.worker.distill.loss_cases import PAD, Toy, V, assert_same, make_pairs, make_sequences, random_inputs, run
from worker.distill.losses.base import LossInputs
from worker.distill.objective import Objective
from worker.distill.types import Batch, TokenSequence, make_batch

MGSR = [SftLoss(weight=0.5), DacKlLoss(weight=2.0, top_k=6, hidden_size=8, kappa=20), SpanLoss(weight=3.0)]
DAC_STATS = {"lower", "upper", "kept_mass", "kept_mass_beside_target", "kept_classes", "floor_held"}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def toys() -> dict[str, Toy]:
    return {"student": Toy(1), "teacher": Toy(2, width=7)}


def whole_batch() -> Batch:
    return make_batch(make_sequences(), pairs=make_pairs(make_sequences()), pad_id=PAD)


def from_hidden(batch: Batch, student: Toy, teacher: Toy, **changed):
    source = {
        "student_hidden_ND": batch.predicting(student.hidden(batch.input_ids_BT)),
        "student_head": student.head,
        "teacher_hidden_ND": batch.predicting(teacher.hidden(batch.input_ids_BT)),
        "teacher_head": teacher.head,
        "batch": batch,
        "vocabulary_size": V,
        "chunk_positions": 3,
    }
    return source | changed


def test_it_equals_one_plain_backward_through_the_whole_graph():
    """No slices, no leaf, no table of metrics: each term's sum over its count, weighted, by autograd alone."""
    objective, models, batch = Objective(MGSR), toys(), whole_batch()
    metrics, gradients = run(objective, [make_sequences()], chunk=3, **models)

    student, teacher = models.values()
    student.zero_grad()
    objective.zero_grad()
    logits_NV = student.head(batch.predicting(student.hidden(batch.input_ids_BT)))
    inputs = LossInputs(
        student_logits_MV=logits_NV,
        teacher_logits_MV=teacher.head(batch.predicting(teacher.hidden(batch.input_ids_BT))).detach(),
        labels_M=batch.labels_N,
        is_ground_truth_M=batch.is_ground_truth_N,
        num_positions=batch.num_positions,
        pair_index_P2=batch.pair_index_P2,
        pair_span_size_P=batch.pair_span_size_P,
    )
    losses = objective.losses
    counts = {"sft": batch.num_ground_truth_positions, "dac_kl": batch.num_positions, "span": batch.num_pairs}
    total = sum(
        weight * losses[kind](inputs).total / counts[kind] for kind, weight in zip(counts, (0.5, 2.0, 3.0), strict=True)
    )
    total.backward()
    assert metrics["loss/total"] == pytest.approx(total.item(), rel=1e-5)
    torch.testing.assert_close(gradients["student.body"], student.body.grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(gradients["student.head.weight"], student.head.weight.grad, rtol=1e-4, atol=1e-6)


@settings(deadline=None, max_examples=25)
@given(cut=st.integers(1, 5), chunk=st.one_of(st.none(), st.integers(1, 40)), seed=st.integers(0, 100))
def test_neither_micro_batches_nor_slices_change_a_step(cut, chunk, seed):
    torch.manual_seed(0)
    objective, rows, models = Objective(MGSR), make_sequences(seed, rows=6), toys()
    assert_same(run(objective, [rows[:cut], rows[cut:]], chunk=chunk, **models), run(objective, [rows], **models))


def test_metrics_are_named_by_kind_and_the_total_is_the_weighted_sum():
    metrics, _ = run(Objective(MGSR), [make_sequences()], **toys())
    assert set(metrics) == {"loss/total", "loss/sft", "loss/dac_kl", "loss/span", *(f"dac_kl/{s}" for s in DAC_STATS)}
    weighted = 0.5 * metrics["loss/sft"] + 2 * metrics["loss/dac_kl"] + 3 * metrics["loss/span"]
    assert metrics["loss/total"] == pytest.approx(weighted, rel=1e-5)
    assert 0 < metrics["dac_kl/lower"] < metrics["dac_kl/upper"] < 1


def test_each_term_is_divided_by_its_own_count():
    """A uniform student pays log V per token, whatever share of the rows is ground truth."""
    student = Toy(1)
    torch.nn.init.zeros_(student.head.weight)
    metrics, _ = run(Objective([SftLoss()]), [make_sequences()], student=student, teacher=Toy(2))
    assert metrics["loss/sft"] == pytest.approx(math.log(V), rel=1e-5)


def test_evaluation_gives_the_same_numbers_and_no_gradient():
    objective, models, batch = Objective(MGSR), toys(), whole_batch()
    counts = objective.counts([batch])
    trained = objective.backward_from_hidden(**from_hidden(batch, **models), counts=counts)
    for parameter in [*models["student"].parameters(), *objective.parameters()]:
        parameter.grad = None
    evaluated = objective.evaluate_from_hidden(**from_hidden(batch, **models), counts=counts)
    assert evaluated == pytest.approx(trained, rel=1e-6)
    assert all(p.grad is None for p in [*models["student"].parameters(), *objective.parameters()])


def test_counts_cover_the_window():
    rows = make_sequences()
    batches = [make_batch(part, pairs=make_pairs(part), pad_id=PAD) for part in (rows[:1], rows[1:])]
    assert Objective(MGSR).counts(batches) == Objective(MGSR).counts([whole_batch()])


def test_a_window_without_anything_to_learn_is_refused():
    empty = make_batch([TokenSequence((3, 4), (), True)], pad_id=PAD)
    with pytest.raises(NothingToLearn, match="no response token"):
        Objective(MGSR).counts([empty, empty])


def test_sampled_rows_alone_teach_sft_nothing():
    sampled = make_batch([TokenSequence((3,), (4, 5), False)], pad_id=PAD)
    with pytest.raises(NothingToLearn):
        Objective([SftLoss()]).counts([sampled])
    assert Objective(MGSR).counts([sampled]) == {"sft": 0, "dac_kl": 2, "span": 0}


def test_terms_that_count_nothing_in_the_window_report_nothing():
    rows = [TokenSequence(row.prompt_ids, row.response_ids, is_ground_truth=False) for row in make_sequences()]
    metrics, gradients = run(Objective(MGSR), [rows], **toys())
    assert "loss/sft" not in metrics
    assert metrics["loss/dac_kl"] > 0
    assert all(gradient.isfinite().all() for gradient in gradients.values())


def test_a_micro_batch_without_response_tokens_adds_nothing_to_a_window_that_has_some():
    objective, models = Objective(MGSR), toys()
    empty = make_batch([TokenSequence((3, 4), (), True)], pad_id=PAD)
    counts = objective.counts([empty, whole_batch()])
    assert objective.backward_from_hidden(**from_hidden(empty, **models), counts=counts) == {}
    assert all(p.grad is None for p in models["student"].parameters())


@pytest.mark.parametrize("kind", ["dac_kl", "span", "sft"])
def test_a_loss_that_is_not_finite_is_named(kind):
    objective, models, batch = Objective([c for c in MGSR if c.kind == kind]), toys(), whole_batch()
    with torch.no_grad():
        models["student"].head.weight[0] = math.nan
    with pytest.raises(NonFiniteLoss, match=f"loss/{kind} became nan") as caught:
        objective.backward_from_hidden(**from_hidden(batch, **models), counts=objective.counts([batch]))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_divergence_that_is_infinite_stops_the_run():
    """A student that rules out a token that the teacher may say: -inf has a finite stand-in, infinity has none."""
    objective, models, batch = Objective([ForwardKlLoss()]), toys(), whole_batch()
    source = from_hidden(batch, **models)
    head = models["student"].head
    source["student_head"] = lambda hidden: head(hidden).index_fill(-1, torch.tensor([5]), -math.inf)
    with pytest.raises(NonFiniteLoss, match="loss/forward_kl became"):
        objective.backward_from_hidden(**source, counts=objective.counts([batch]))


def test_without_a_loss_that_needs_it_the_teacher_is_never_asked():
    def teacher_head(hidden):
        raise AssertionError("asked the teacher")

    objective, models, batch = Objective([SftLoss()]), toys(), whole_batch()
    assert not objective.needs_teacher
    assert Objective(MGSR).needs_teacher
    for source in ({"teacher_head": teacher_head}, {"teacher_head": None, "teacher_hidden_ND": None}):
        metrics = objective.backward_from_hidden(
            **from_hidden(batch, **models, **source), counts=objective.counts([batch])
        )
        assert metrics["loss/sft"] > 0


def test_a_frozen_body_still_trains_the_head():
    objective, models, batch = Objective([ForwardKlLoss()]), toys(), whole_batch()
    source = from_hidden(batch, **models)
    source["student_hidden_ND"] = source["student_hidden_ND"].detach()
    objective.backward_from_hidden(**source, counts=objective.counts([batch]))
    assert models["student"].head.weight.grad.any()
    assert models["student"].body.grad is None


def test_under_autocast_heads_run_in_bfloat16_and_losses_in_float32():
    seen: dict[str, torch.dtype] = {}
    objective, models, batch = Objective(MGSR), toys(), whole_batch()
    objective.losses["dac_kl"].register_forward_pre_hook(
        lambda _, args: seen.update(logits=args[0].student_logits_MV.dtype, probs=args[0].student_probs_MV.dtype)
    )
    objective.losses["dac_kl"].subnet.register_forward_hook(lambda _, __, output: seen.update(bounds=output[0].dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        metrics = objective.backward_from_hidden(**from_hidden(batch, **models), counts=objective.counts([batch]))
    assert seen == {"logits": torch.bfloat16, "probs": torch.float32, "bounds": torch.float32}
    exact, _ = run(objective, [make_sequences()], **models)
    assert metrics["loss/total"] == pytest.approx(exact["loss/total"], rel=0.05)


def test_only_own_parameters_form_groups_each_with_its_own_rate():
    (group,) = Objective(MGSR).parameter_groups(2e-4)
    assert group["lr"] == pytest.approx(2e-3)  # DacKlLoss.subnet_lr_factor is 10
    assert len(group["params"]) == 6
    assert Objective([SftLoss(), ReverseKlLoss()]).parameter_groups(2e-4) == []


def test_its_state_brings_back_the_sub_network():
    one, other = Objective(MGSR), Objective(MGSR)
    other.load_state_dict(one.state_dict())
    inputs = random_inputs(0)
    assert torch.equal(one.losses["dac_kl"](inputs).total, other.losses["dac_kl"](inputs).total)


def test_a_collapsed_mask_is_warned_of():
    objective = Objective(MGSR)
    good = {"loss/dac_kl": 1.0, "dac_kl/floor_held": 0.4}
    assert objective.warnings(good, step=7) == []
    (warning,) = objective.warnings(good | {"dac_kl/floor_held": 0.9}, step=7)
    assert (warning.code, warning.step) == ("dac_kl_alarm", 7)
    assert "90%" in warning.message
    assert objective.warnings({"loss/sft": 1.0}, step=7) == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_computes_the_same_step():
    objective, models = Objective(MGSR), toys()
    expected, _ = run(objective, [make_sequences()], **models)
    batch = make_batch(make_sequences(), pairs=make_pairs(make_sequences()), pad_id=PAD, device="cuda")
    objective.to("cuda")
    student, teacher = (model.to("cuda") for model in models.values())
    counts = objective.counts([batch])
    assert objective.backward_from_hidden(**from_hidden(batch, student, teacher), counts=counts) == pytest.approx(
        expected, rel=1e-3
    )
