"""What every loss promises for any numbers, found by search: sign, zero, precision, and indifference to arrangement.

test_table.py has the same contract on fixed examples; here hypothesis looks for the ones that break it. The search is
the same in every run.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from app.core.loss_config import (
    DacKlLoss,
    ForwardKlLoss,
    JsdLoss,
    ReverseKlLoss,
    SftLoss,
    SkewKlLoss,
    SkewReverseKlLoss,
    SpanLoss,
    TopKKlLoss,
    TopPKlLoss,
    TvdLoss,
)
from tests.worker.distill.loss_cases import (
    CASES,
    DIVERGENCES,
    Toy,
    V,
    assert_same,
    make_inputs,
    make_sequences,
    name,
    run,
)
from worker.distill.losses.base import Loss, LossInputs
from worker.distill.losses.table import build_loss
from worker.distill.objective import Objective

search = settings(derandomize=True, deadline=None, database=None, max_examples=10)
every_loss = pytest.mark.parametrize("config", CASES, ids=name)
every_divergence = pytest.mark.parametrize("config", DIVERGENCES, ids=name)
both_precisions = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
seeds, sharpnesses = st.integers(0, 10**6), st.floats(0.01, 8)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)  # f_sub's initial weights


def random_logits(seed: int, sharpness: float, m: int = 5, v: int = V) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    student, teacher = (sharpness * torch.randn(m, v, generator=random, dtype=torch.float64) for _ in range(2))
    return student, teacher


def inputs_of(student_MV: Tensor, teacher_MV: Tensor) -> LossInputs:
    """Labels below every vocabulary, one sampled row in three, and two spans: positions 0 to 2, and 3 to the last."""
    m = len(student_MV)
    pairs = [(i, i + 1) for i in range(m - 1) if i != 2]
    return make_inputs(
        student_MV,
        teacher_MV,
        labels=[i % 4 for i in range(m)],
        ground_truth=[i % 3 != 1 for i in range(m)],
        pairs=pairs,
        span_sizes=[2, 2, *[m - 4] * (m - 4)],
    )


def value_and_gradients(loss: Loss, student_MV: Tensor, teacher_MV: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The loss's sum, and the gradients of the student's logits and of the loss's own parameters."""
    leaf = student_MV.clone().requires_grad_()
    total = loss(inputs_of(leaf, teacher_MV)).total
    return total.detach(), list(torch.autograd.grad(total, [leaf, *loss.parameters()]))


# --- sign and zero ------------------------------------------------------------------------------------------


@every_divergence
@both_precisions
@search
@given(seed=seeds, sharpness=sharpnesses)
def test_equal_models_have_none(config: Any, dtype: torch.dtype, seed: int, sharpness: float) -> None:
    _, teacher = (logits.to(dtype) for logits in random_logits(seed, sharpness))
    total, (gradient, *_) = value_and_gradients(build_loss(config).to(dtype), teacher, teacher)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-13
    assert abs(total.item()) <= tolerance
    if not (isinstance(config, DacKlLoss) and config.normalise == "none"):  # whose least value is elsewhere
        assert gradient.abs().max() <= tolerance


@pytest.mark.parametrize(
    "config", [c for c in DIVERGENCES if not isinstance(c, DacKlLoss) or c.normalise != "none"], ids=name
)
@search
@given(seed=seeds, sharpness=sharpnesses, distance=st.floats(0, 1))
def test_none_is_negative_in_double_precision_however_near_the_models_are(
    config: Any, seed: int, sharpness: float, distance: float
) -> None:
    student, teacher = random_logits(seed, sharpness)
    near = teacher + distance**4 * (student - teacher)
    assert build_loss(config).double()(inputs_of(near, teacher)).total.item() >= -1e-13


# --- values and gradients against plain formulas in double precision ------------------------------------------


def _kl(p: Tensor, q: Tensor) -> Tensor:
    return (p * (p / q).log()).sum(-1)


def _with_rest(x: Tensor, kept: Tensor) -> Tensor:
    return torch.cat([x * kept, (x * ~kept).sum(-1, keepdim=True)], -1).clamp(min=1e-300)


def _span(inputs: LossInputs, p: Tensor, q: Tensor) -> Tensor:
    first, second = inputs.pair_index_P2.unbind(-1)
    return (q[first] * q[second] - p[first] * p[second]).square().sum()


def _top(p: Tensor, count: int) -> Tensor:
    return torch.zeros_like(p, dtype=torch.bool).scatter(-1, p.topk(count, -1).indices, True)


def _nucleus(p: Tensor, mass: float) -> Tensor:
    """The likeliest ids up to and including the one whose own mass brings the sum to `mass`."""
    sorted_p, order = p.sort(-1, descending=True)
    return torch.zeros_like(p, dtype=torch.bool).scatter(-1, order, sorted_p.cumsum(-1) - sorted_p < mass)


# p the teacher's probabilities, q the student's, by the definitions in the papers: no logarithms of mixtures, no care.
FORMULAS: list[tuple[Any, Any]] = [
    (SftLoss(rows="all"), lambda i, p, q: -q.gather(-1, i.labels_M[:, None]).log().sum()),
    (SftLoss(), lambda i, p, q: -(q.gather(-1, i.labels_M[:, None]).log()[:, 0] * i.is_ground_truth_M).sum()),
    (ForwardKlLoss(), lambda i, p, q: _kl(p, q).sum()),
    (ReverseKlLoss(), lambda i, p, q: _kl(q, p).sum()),
    (
        JsdLoss(beta=0.3),
        lambda i, p, q: (0.3 * _kl(p, 0.3 * p + 0.7 * q) + 0.7 * _kl(q, 0.3 * p + 0.7 * q)).sum(),
    ),
    (SkewKlLoss(alpha=0.1), lambda i, p, q: _kl(p, 0.1 * p + 0.9 * q).sum()),
    (SkewReverseKlLoss(alpha=0.1), lambda i, p, q: _kl(q, 0.1 * q + 0.9 * p).sum()),
    (TvdLoss(), lambda i, p, q: (p - q).abs().sum() / 2),
    (TopKKlLoss(top_k=4), lambda i, p, q: _kl(_with_rest(p, _top(p, 4)), _with_rest(q, _top(p, 4))).sum()),
    (
        TopPKlLoss(top_p=0.7),
        lambda i, p, q: _kl(_with_rest(p, _nucleus(p, 0.7)), _with_rest(q, _nucleus(p, 0.7))).sum(),
    ),
    (SpanLoss(), _span),
]


def test_every_loss_without_a_network_has_a_plain_formula() -> None:
    assert {config.kind for config, _ in FORMULAS} == {config.kind for config in CASES} - {"dac_kl"}


@pytest.mark.parametrize(("config", "formula"), FORMULAS, ids=[name(config) for config, _ in FORMULAS])
@both_precisions
@search
@given(seed=seeds, sharpness=st.floats(0.01, 4))
def test_values_and_gradients_are_those_of_the_formula_by_double_precision_autograd(
    config: Any, formula: Any, dtype: torch.dtype, seed: int, sharpness: float
) -> None:
    student, teacher = (logits.to(dtype) for logits in random_logits(seed, sharpness))
    leaf = student.double().requires_grad_()
    expected = formula(inputs_of(leaf, teacher), teacher.double().softmax(-1), leaf.softmax(-1))
    (expected_gradient,) = torch.autograd.grad(expected, leaf)
    total, (gradient,) = value_and_gradients(build_loss(config), student, teacher)
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-8, "atol": 1e-11}
    torch.testing.assert_close(total.double(), expected.detach(), **tolerance)
    torch.testing.assert_close(gradient.double(), expected_gradient, **tolerance)


@every_loss
@search
@given(seed=seeds, sharpness=st.floats(0.5, 4))
def test_single_precision_gradients_are_those_of_double_precision(config: Any, seed: int, sharpness: float) -> None:
    """Of the loss's own network too, which has no plain formula."""
    student, teacher = (logits.float() for logits in random_logits(seed, sharpness))
    loss = build_loss(config)
    total, gradients = value_and_gradients(loss, student, teacher)
    in_double, expected = value_and_gradients(copy.deepcopy(loss).double(), student.double(), teacher.double())
    torch.testing.assert_close(total.double(), in_double, rtol=1e-4, atol=1e-5)
    for gradient, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient.double(), wanted, rtol=1e-3, atol=1e-4)


@every_loss
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@search
@given(seed=seeds, sharpness=st.floats(0.5, 8))
def test_half_precision_logits_lose_nothing_but_their_own_digits(
    config: Any, dtype: torch.dtype, seed: int, sharpness: float
) -> None:
    student, teacher = (logits.to(dtype) for logits in random_logits(seed, sharpness))
    loss = build_loss(config)
    total, (gradient, *_) = value_and_gradients(loss, student, teacher)
    same, (wanted, *_) = value_and_gradients(loss, student.float(), teacher.float())
    torch.testing.assert_close(total, same)
    torch.testing.assert_close(gradient, wanted.to(dtype))


# --- indifference to arrangement --------------------------------------------------------------------------------


@every_loss
@search
@given(
    seed=st.integers(0, 1000),
    order=st.permutations(range(5)),
    cut=st.integers(0, 5),
    chunk=st.none() | st.integers(1, 30),
    pad_id=st.integers(0, V - 1),
)
def test_order_micro_batches_slices_and_padding_change_nothing(
    config: Any, seed: int, order: list[int], cut: int, chunk: int | None, pad_id: int
) -> None:
    """A row is padded to the longest of its own micro-batch, so every cut pads differently."""
    torch.manual_seed(0)
    objective, models = Objective([config]), {"student": Toy(1), "teacher": Toy(2, width=7)}
    rows = make_sequences(seed, rows=5)
    arranged = [rows[i] for i in order]
    parts = [part for part in (arranged[:cut], arranged[cut:]) if part]
    assert_same(run(objective, parts, chunk=chunk, pad_id=pad_id, **models), run(objective, [rows], **models))


@every_loss
@both_precisions
@search
@given(seed=seeds, sharpness=sharpnesses, more=st.integers(1, 9))
def test_ids_that_both_models_rule_out_change_nothing(
    config: Any, dtype: torch.dtype, seed: int, sharpness: float, more: int
) -> None:
    student, teacher = (logits.to(dtype) for logits in random_logits(seed, sharpness))
    loss = build_loss(config).to(dtype)
    longer = [torch.nn.functional.pad(logits, (0, more), value=-math.inf) for logits in (student, teacher)]
    total, (gradient, *own) = value_and_gradients(loss, student, teacher)
    same, (longer_gradient, *longer_own) = value_and_gradients(loss, *longer)
    tolerance = {"rtol": 1e-4, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-10, "atol": 1e-13}
    torch.testing.assert_close(same, total, **tolerance)
    torch.testing.assert_close(longer_gradient[:, :V], gradient, **tolerance)
    assert not longer_gradient[:, V:].any()
    if getattr(config, "top_k", 0) < V:  # f_sub pays for every class it is shown, and now there are more of them
        torch.testing.assert_close(longer_own, own, **tolerance)
