"""The layer benchmark on tiny models, and its page, which is the result file's and agrees with the default."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from app.core.job_config import FromTeacherStudent
from benchmarks.layer_choice import CHOICES, DOCUMENT, MEASURES, RESULTS, best_choice, document, main

ROOT = Path(__file__).parents[2]
DEFAULT = FromTeacherStudent.model_fields["choice"].default


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return json.loads((ROOT / RESULTS).read_text(encoding="utf-8"))


def test_the_page_is_made_of_the_result_file(result: dict[str, Any]) -> None:
    assert (ROOT / DOCUMENT).read_text(encoding="utf-8") == document(result)


def test_the_default_is_the_choice_that_starts_best_most_often(result: dict[str, Any]) -> None:
    winners = list(best_choice(result["rows"], "before").values())
    assert max(CHOICES, key=winners.count) == DEFAULT == result["default"]


def test_the_best_choice_has_the_lowest_mean_divergence() -> None:
    rows = [
        {"layers": layers, "choice": choice, "before": {"kl_ts": kl}, "after": {"kl_ts": -kl}}
        for layers, values in ((2, (3, 1, 2)), (3, (1, 2, 3)))
        for choice, kl in zip(CHOICES, values, strict=True)
    ]
    assert best_choice(rows, "before") == {2: CHOICES[1], 3: CHOICES[0]}
    assert best_choice(rows, "after") == {2: CHOICES[0], 3: CHOICES[2]}
    second_seed = [{**rows[0], "before": {"kl_ts": -5}}]  # choice 0 at 2 layers: mean (3 - 5) / 2
    assert best_choice(rows + second_seed, "before")[2] == CHOICES[0]


def test_every_choice_is_measured_before_and_after_its_training(
    tiny_teacher: Path, tiny_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"layers": 2, "steps": 3, "dev-rows": 4, "rouge-rows": 2, "learning-rate": 1e-3}
    arguments = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    monkeypatch.setattr(
        sys, "argv", ["layer_choice", "--teacher", str(tiny_teacher), "--rows", str(tiny_rows), *arguments]
    )
    main()
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert [row["choice"] for row in found["rows"]] == list(CHOICES)
    for row in found["rows"]:
        assert set(row["before"]) == set(row["after"]) == set(MEASURES)
        assert 0 < row["after"]["kl_ts"] < row["before"]["kl_ts"]
    assert document(found) == DOCUMENT.read_text(encoding="utf-8")
    assert f"`{DEFAULT}`" in capsys.readouterr().out
