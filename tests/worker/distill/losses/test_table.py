"""The contract that every entry of LOSSES keeps (a new loss is picked up from the table)."""

from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.loss_config import DacKlLoss, LossConfig, SftLoss, SpanLoss
from tests.worker.distill.loss_cases import (
    CASES,
    DIVERGENCES,
    EOS,
    PAD,
    Toy,
    V,
    assert_same,
    make_inputs,
    make_pairs,
    make_sequences,
    name,
    random_inputs,
    run,
)
from worker.distill.losses.table import LOSSES, build_loss
from worker.distill.objective import Objective
from worker.distill.types import make_batch

every_loss = pytest.mark.parametrize("config", CASES, ids=name)
every_divergence = pytest.mark.parametrize("config", DIVERGENCES, ids=name)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)  # f_sub's initial weights


def test_the_table_has_every_loss_that_a_job_may_name():
    union = get_args(LossConfig)[0]
    assert set(LOSSES) == set(get_args(union))


@every_loss
def test_an_accumulated_window_is_one_big_batch(config):
    objective, models = Objective([config]), {"student": Toy(1), "teacher": Toy(2, width=7)}
    rows = make_sequences()
    assert_same(run(objective, [rows[:1], rows[1:]], **models), run(objective, [rows], **models))


@every_loss
@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_slices_of_positions_are_the_whole(config, chunk):
    """Span pairs of the toy rows cross slices at each of these lengths."""
    objective, models = Objective([config]), {"student": Toy(1), "teacher": Toy(2, width=7)}
    assert_same(run(objective, [make_sequences()], chunk=chunk, **models), run(objective, [make_sequences()], **models))


@every_loss
def test_the_order_of_rows_changes_nothing(config):
    objective, models = Objective([config]), {"student": Toy(1), "teacher": Toy(2, width=7)}
    rows = make_sequences()
    assert_same(run(objective, [rows[::-1]], **models), run(objective, [rows], **models))


@every_loss
def test_the_pad_id_changes_nothing(config):
    objective, models = Objective([config]), {"student": Toy(1), "teacher": Toy(2, width=7)}
    assert_same(
        run(objective, [make_sequences()], pad_id=5, **models), run(objective, [make_sequences()], pad_id=PAD, **models)
    )


@every_loss
def test_ids_behind_the_shared_vocabulary_change_nothing(config):
    objective, rows = Objective([config]), [make_sequences()]
    longer_student, longer_teacher = Toy(1, vocabulary_size=V + 4), Toy(2, width=7, vocabulary_size=V + 9)
    student, teacher = Toy(1), Toy(2, width=7)
    with torch.no_grad():
        longer_student.head.weight[:V] = student.head.weight
        longer_teacher.head.weight[:V] = teacher.head.weight
    metrics, gradients = run(objective, rows, student=longer_student, teacher=longer_teacher)
    assert not gradients["student.head.weight"][V:].any()
    gradients["student.head.weight"] = gradients["student.head.weight"][:V]
    assert_same((metrics, gradients), run(objective, rows, student=student, teacher=teacher))


@every_loss
def test_prompt_and_padding_carry_no_loss_and_the_end_token_does(config):
    rows, student, teacher = make_sequences(), Toy(1), Toy(2, width=7)
    batch = make_batch(rows, pairs=make_pairs(rows), pad_id=PAD)
    objective = Objective([config])
    hidden_BTD = student.hidden(batch.input_ids_BT).detach().requires_grad_()
    objective.backward_from_hidden(
        student_hidden_ND=batch.predicting(hidden_BTD),
        student_head=student.head,
        teacher_hidden_ND=batch.predicting(teacher.hidden(batch.input_ids_BT)),
        teacher_head=teacher.head,
        batch=batch,
        counts=objective.counts([batch]),
        vocabulary_size=V,
        chunk_positions=3,
    )
    touched_BT = hidden_BTD.grad.abs().sum(-1) > 0
    for b, row in enumerate(rows):
        counted = row.is_ground_truth or not (isinstance(config, SftLoss) and config.rows == "ground_truth")
        first, last = len(row.prompt_ids) - 1, len(row.prompt_ids) + len(row.response_ids) - 1
        assert touched_BT[b].tolist() == [counted and first <= t < last for t in range(touched_BT.shape[1])]
        assert row.response_ids[-1] == EOS  # predicted by the last touched position


@every_loss
def test_nothing_counted_is_zero_with_finite_gradients(config):
    loss = build_loss(config)
    empty = make_inputs(torch.zeros(0, V, requires_grad=True), torch.zeros(0, V))
    unmarked = make_inputs(torch.randn(3, V, requires_grad=True), torch.randn(3, V), ground_truth=[False] * 3)
    nothing_in = {
        "sft": [empty] if getattr(config, "rows", "") == "all" else [empty, unmarked],
        "span": [empty, unmarked],
    }
    for inputs in nothing_in.get(config.kind, [empty]):
        total = loss(inputs).total
        assert total.item() == 0
        total.backward()
        for leaf in [inputs.student_logits_MV, *loss.parameters()]:
            assert leaf.grad is None or torch.equal(leaf.grad, torch.zeros_like(leaf))
        assert inputs.student_logits_MV.grad is not None  # connected to the graph


@every_loss
def test_gradients_reach_the_student_and_own_parameters_and_never_the_teacher(config):
    objective, student, teacher = Objective([config]), Toy(1), Toy(2, width=7)
    _, gradients = run(objective, [make_sequences()], student=student, teacher=teacher)
    expected = {"student.body", "student.head.weight", *(f"objective.{key}" for key, _ in objective.named_parameters())}
    assert set(gradients) == expected
    assert all(gradient.isfinite().all() and gradient.any() for gradient in gradients.values())
    assert all(parameter.grad is None for parameter in teacher.parameters())


@every_loss
def test_a_loss_that_needs_no_teacher_runs_without_one(config):
    loss, inputs = build_loss(config), random_inputs(0)
    if not loss.needs_teacher:
        total = loss(make_inputs(inputs.student_logits_MV, None, labels=inputs.labels_M.tolist())).total
        assert total.isfinite()
    else:
        assert config.kind != "sft"


@every_divergence
def test_equal_models_have_no_divergence(config):
    inputs = random_inputs(3)
    total = build_loss(config)(
        make_inputs(inputs.teacher_logits_MV.clone(), inputs.teacher_logits_MV, pairs=[(0, 1)])
    ).total
    assert total.item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    "config", [c for c in DIVERGENCES if not isinstance(c, DacKlLoss) or c.normalise != "none"], ids=name
)
@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6), size=st.integers(5, 40), sharpness=st.floats(0.05, 30))
def test_a_divergence_is_never_negative(config, seed, size, sharpness):
    """DAC-KL's literal form is none: its sign is tested in test_dac_kl.py."""
    random = torch.Generator().manual_seed(seed)
    student, teacher = (sharpness * torch.randn(4, size, generator=random) for _ in range(2))
    inputs = make_inputs(student, teacher, pairs=[(0, 1), (1, 2), (2, 3)])
    assert build_loss(config)(inputs).total >= -1e-4


@every_loss
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_give_a_float32_sum(config, dtype):
    loss, half = build_loss(config), random_inputs(4, dtype=dtype)
    output = loss(half)
    assert output.total.dtype == torch.float32
    assert all(value.dtype == torch.float32 and not value.requires_grad for value in output.stats.values())
    same_numbers = make_inputs(
        half.student_logits_MV.float(),
        half.teacher_logits_MV.float(),
        labels=half.labels_M.tolist(),
        ground_truth=half.is_ground_truth_M.tolist(),
        pairs=half.pair_index_P2.tolist(),
        span_sizes=half.pair_span_size_P.tolist(),
    )
    torch.testing.assert_close(output.total, loss(same_numbers).total)
    output.total.backward()
    assert half.student_logits_MV.grad.dtype == dtype


@pytest.mark.parametrize(
    "config",
    [c for c in CASES if not isinstance(c, DacKlLoss) or c.subnet_objective == "fixed"],
    ids=name,
)
def test_double_precision_gradients_are_those_of_finite_differences(config):
    """Where f_sub learns, the gradient is on purpose not that of the value: test_dac_kl.py has those cases."""
    loss, inputs = build_loss(config), random_inputs(5, m=5, dtype=torch.float64)

    def total(logits_MV):
        return loss(
            make_inputs(
                logits_MV,
                inputs.teacher_logits_MV,
                labels=inputs.labels_M.tolist(),
                ground_truth=inputs.is_ground_truth_M.tolist(),
                pairs=inputs.pair_index_P2.tolist(),
                span_sizes=[2] * len(inputs.pair_index_P2),
            )
        ).total

    assert torch.autograd.gradcheck(total, inputs.student_logits_MV)


@every_loss
def test_extreme_logits_stay_finite(config):
    """A student that is certain of the wrong token, against a teacher that is certain of another."""
    student, teacher = torch.full((3, V), -60.0), torch.full((3, V), -60.0)
    student[:, 1], teacher[:, 2] = 60.0, 60.0
    inputs = make_inputs(student.requires_grad_(), teacher, labels=[2, 2, 2], pairs=[(0, 1)])
    loss = build_loss(config)
    total = loss(inputs).total
    total.backward()
    assert total.isfinite()
    assert all(leaf.grad.isfinite().all() for leaf in [student, *loss.parameters()])


@every_loss
def test_counts_come_from_the_batch(config):
    rows = make_sequences()
    batch = make_batch(rows, pairs=make_pairs(rows), pad_id=PAD)
    positions = [len(row.response_ids) for row in rows]
    expected = {"sft": sum(positions[::2]), "span": sum(n - 2 for n in positions)}.get(config.kind, sum(positions))
    if config == SftLoss(rows="all"):
        expected = sum(positions)
    if isinstance(config, SpanLoss) and config.average == "spans":
        expected = 2 * len(rows)
    assert build_loss(config).count(batch) == expected
