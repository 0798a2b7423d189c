"""When a run keeps its teacher's states: the count of visits against the rows to read, and who wishes what."""

from __future__ import annotations

from typing import Any

import pytest

from app.core.job_config import DistillConfig
from app.core.teacher_states import looks, reads_teacher, visits, worth_keeping


def make(states: str = "auto", **sections: Any) -> DistillConfig:
    raw: dict[str, Any] = {
        "recipe": "kd",
        "teacher": {"model": "t"},
        "student": {"kind": "from_teacher", "layers": 1},
        "data": {"kind": "file", "path": "rows.jsonl", "teacher_states": states},
        "training": {"max_steps": 10, "batch_size": 2, "gradient_accumulation": 3},
    }
    return DistillConfig.model_validate(raw | sections)


@pytest.mark.parametrize(
    ("sampling", "visited"),
    [
        ({"kind": "ground_truth"}, 60),
        ({"kind": "mixed", "student_fraction": 0.25}, 45),
        ({"kind": "adaptive_off_policy", "phi_start": 0.5}, 30),
        ({"kind": "on_policy"}, 0),
    ],
)
def test_visits_are_counted_over_all_steps(sampling: dict[str, Any], visited: float) -> None:
    config = make(sampling=sampling)
    assert visits(config) == visited
    assert worth_keeping(config, rows_to_read=int(visited)) == bool(visited)
    assert not worth_keeping(config, rows_to_read=int(visited) + 1)
    # what the teacher writes is there already
    assert worth_keeping(config, rows_to_read=0) == bool(visited)


def test_a_wish_decides_unless_nobody_reads_the_states() -> None:
    assert worth_keeping(make("on"), rows_to_read=10**6)
    assert not worth_keeping(make("off"), rows_to_read=0)
    assert not worth_keeping(make("on", sampling={"kind": "on_policy"}), rows_to_read=0)
    for recipe in ("sft", "seqkd"):
        config = make("on", recipe=recipe)
        assert not reads_teacher(config)
        assert not worth_keeping(config, rows_to_read=0)


@pytest.mark.parametrize(
    ("sampling", "responses", "looked"),
    [
        ({"kind": "ground_truth"}, "given", 60),
        ({"kind": "ground_truth", "candidates": 3}, "given", 180),
        ({"kind": "mixed", "student_fraction": 0.25, "candidates": 2}, "given", 120),
        ({"kind": "mixed", "student_fraction": 0.25, "candidates": 2}, "student", 90),
        ({"kind": "adaptive_off_policy", "phi_start": 0.5, "candidates": 2}, "given", 2 * (30 + 15)),
        ({"kind": "on_policy", "candidates": 2}, "teacher", 120),
        ({"kind": "on_policy", "candidates": 2}, "student", 0),
    ],
)
def test_rows_are_looked_at_to_be_chosen(sampling: dict[str, Any], responses: str, looked: float) -> None:
    config = make(sampling=sampling, data={"kind": "file", "path": "rows.jsonl", "responses": responses})
    assert looks(config) == (looked if sampling.get("candidates", 1) > 1 else 0)
    readings = int(visits(config) + looks(config))
    assert worth_keeping(config, rows_to_read=readings) == bool(readings)
    assert not worth_keeping(config, rows_to_read=readings + 1)
