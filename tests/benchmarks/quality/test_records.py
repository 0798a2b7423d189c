"""What was measured is found again, and only for the same run under the same conditions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.core.recipes import RECIPES
from benchmarks.quality import records
from benchmarks.quality.contenders import Contender
from benchmarks.quality.records import Records, Run

RUN = Run("tiny", "few_labels", Contender("kd", "default", {"recipe": "kd"}), "steps", 10, 0, 1e-3)


def test_a_run_is_found_by_another_process(tmp_path: Path) -> None:
    Records(tmp_path / "runs.jsonl", about={"rows": 3}).add(RUN, {"eval/exact_match": 0.5})
    found = Records(tmp_path / "runs.jsonl", about={"rows": 3}).get(RUN)
    assert found is not None
    assert found["measured"] == {"eval/exact_match": 0.5}
    assert Records(tmp_path / "runs.jsonl", about={"rows": 4}).get(RUN) is None


@pytest.mark.parametrize("change", [{"steps": 11}, {"seed": 1}, {"learning_rate": 2e-3}, {"regime": "many_labels"}])
def test_another_description_is_another_run(change: dict[str, object], tmp_path: Path) -> None:
    known = Records(tmp_path / "runs.jsonl", about={})
    known.add(RUN, {})
    assert known.get(replace(RUN, **change)) is None
    assert known.get(replace(RUN, budget="time")) is not None  # measured alike


def test_a_recipe_that_changed_is_measured_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = Records(tmp_path / "runs.jsonl", about={})
    known.add(RUN, {})
    monkeypatch.setattr(records, "RECIPES", {**RECIPES, "kd": {**RECIPES["kd"], "scrg": {"rounds": 1}}})
    assert known.get(RUN) is None
