"""A blind comparison is masked wherever it is shown, and one that is not is shown whole."""

from __future__ import annotations

from typing import Any

import pytest

from app.core.db import comparison_view
from app.core.db.tables import Comparison
from tests.app.conftest import Clock

SECRETS = {"mdl_left", "mdl_right", "fa11ab1e", "0.125", "31.5", "7654321"}


def row(clock: Clock, **columns: Any) -> Comparison:
    """A comparison that two models answered, as it lies in its table."""
    answers = [
        {
            "model_id": model_id,
            "text": "same words",
            "tokens": 2,
            "seconds": 0.125,
            "tokens_per_s": 31.5,
            "finished": True,
            "parameters": 7654321,
            "weights_sha256": "fa11ab1e",
        }
        for model_id in ("mdl_left", "mdl_right")
    ]
    request = {
        "model_ids": ["mdl_left", "mdl_right"],
        "messages": [{"role": "user", "content": "x" * 1000}],
        "blind": True,
    }
    held: dict[str, Any] = {
        "id": "cmp_1",
        "status": "succeeded",
        "request": request,
        "answers": answers,
        "history": {"mdl_left": []},
        "hidden": True,
        "created_at": clock(),
        "finished_at": clock(),
    }
    return Comparison(**held | columns)


def shown(comparison: Comparison) -> str:
    shape, line = comparison_view.as_shape(comparison), comparison_view.as_line(comparison)
    return shape.model_dump_json() + line.model_dump_json()


def test_what_is_blind_tells_nothing(clock: Clock) -> None:
    text = shown(row(clock))
    assert [secret for secret in SECRETS if secret in text] == []
    assert text.count("same words") == 2


@pytest.mark.parametrize("columns", [{"vote": "tie", "hidden": False}, {"hidden": False}])
def test_what_is_not_blind_tells_everything(clock: Clock, columns: dict[str, Any]) -> None:
    text = shown(row(clock, **columns))
    assert [secret for secret in SECRETS if secret not in text] == []


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_one_that_can_never_be_voted_on_is_shown_with_its_error(clock: Clock, status: str) -> None:
    failed = row(clock, status=status, error_code="missing_model", error_message="no files of mdl_left")
    error = comparison_view.as_shape(failed).error
    assert error is not None
    assert (error.code, error.message) == ("missing_model", "no files of mdl_left")
    assert [secret for secret in SECRETS if secret not in shown(failed)] == []


def test_a_line_shows_the_beginning_of_the_prompt(clock: Clock) -> None:
    assert comparison_view.as_line(row(clock)).prompt == "x" * 200
