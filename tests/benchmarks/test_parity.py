"""The page about parity is the result file's, and every comparison in it holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from app.core.loss_config import LossConfig
from benchmarks.parity.report import DOCUMENT, RESULTS, TOLERANCE, Row, document

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return json.loads((ROOT / RESULTS).read_text(encoding="utf-8"))


def test_the_page_is_made_of_the_result_file(result: dict[str, Any]) -> None:
    assert (ROOT / DOCUMENT).read_text(encoding="utf-8") == document(result)


def test_every_comparison_holds_within_the_stated_tolerance(result: dict[str, Any]) -> None:
    assert result["tolerance"] == TOLERANCE
    assert all(Row(**row).holds for row in result["rows"])
    assert "All agree." in document(result)


def test_every_loss_that_trl_has_is_compared(result: dict[str, Any]) -> None:
    kinds = {loss.model_fields["kind"].default for loss in get_args(get_args(LossConfig)[0])}
    compared = {row["loss"] for row in result["rows"]}
    assert compared == {"forward_kl", "reverse_kl", "jsd", "topk_kl", "skew_kl", "skew_reverse_kl"} <= kinds


@pytest.mark.parametrize("name", ["value_difference", "gradient_difference"])
def test_a_difference_beyond_the_tolerance_is_told(result: dict[str, Any], name: str) -> None:
    first, *others = result["rows"]
    off = first | {name: 1.01 * TOLERANCE[first["precision"]]}
    page = document(result | {"rows": [off, *others]})
    assert f"1 of {len(result['rows'])} comparisons do not agree." in page
    assert page.count("| NO |") == 1
