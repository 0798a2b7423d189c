"""The best evaluation is found for measures of both directions, and a missing measure is refused early."""

from __future__ import annotations

import math
from typing import get_args

import pytest

from app.core.errors import InvalidRequest
from app.core.job_config import BETTER, EvaluationConfig, MetricName
from worker.distill.selection import Selection


def choose(metric: str, values: list[float], *, select: str = "best") -> tuple[list[bool], Selection]:
    selection = Selection(EvaluationConfig.model_validate({"metric": metric, "select": select, "exact_match": True}))
    return [selection.observe(i, {f"eval/{metric}": value}) for i, value in enumerate(values, start=1)], selection


@pytest.mark.parametrize(
    ("metric", "values", "kept", "best"),
    [
        ("kl_ts", [3.0, 1.0, 2.0], [True, True, False], 2),
        ("rouge_l", [0.1, 0.3, 0.2], [True, True, False], 2),
        ("exact_match", [0.0, 0.0, 0.0], [True, True, True], 3),
        ("kl_ts", [math.nan, 9.0, math.nan], [True, True, False], 2),
        ("loss", [2.0, 2.0, 2.5], [True, True, False], 2),
    ],
)
def test_the_best_is_kept_and_of_equals_the_later(
    metric: str, values: list[float], kept: list[bool], best: int
) -> None:
    asked, selection = choose(metric, values)
    assert asked == kept
    assert (selection.best_step, selection.best.step, selection.latest.step) == (best, best, 3)
    other = Selection(EvaluationConfig())
    other.load(selection.state())
    assert (other.best, other.latest) == (selection.best, selection.latest)


def test_the_last_needs_no_keeping() -> None:
    asked, selection = choose("kl_ts", [1.0, 2.0, 3.0], select="last")
    assert asked == [False, False, False]
    assert (selection.best.step, selection.best_step) == (3, None)


def test_a_measure_that_the_run_does_not_have_is_refused() -> None:
    selection = Selection(EvaluationConfig(metric="rouge_l"))
    with pytest.raises(InvalidRequest, match=r"evaluation.metric: no evaluation of this run has eval/rouge_l"):
        selection.check({"eval/kl_ts": 1.0})
    selection.check({"eval/rouge_l": 0.0})
    Selection(EvaluationConfig(metric="rouge_l", select="last")).check({"eval/kl_ts": 1.0})


def test_every_measure_has_a_better_end() -> None:
    assert set(BETTER) == set(get_args(MetricName))
