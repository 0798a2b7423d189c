"""What the service adds, at toy size: both ways run for real, and the rows find their place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.speed.overhead import measure, write
from benchmarks.speed.rows import row


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_both_ways_are_measured(tiny_teacher: Path, tmp_path: Path) -> None:
    steps, training, others = measure(tmp_path, teacher=str(tiny_teacher), steps=12, pairs=1)
    assert steps.ours >= 0  # events are stored in batches: steps as short as these may all have the time of one batch
    assert steps.peer is not None
    assert steps.peer > 0
    for found in (training, others):
        assert 0 < found.ours < 600
    assert training.ratio == pytest.approx(training.ours / (training.peer or 0))
    assert (steps.target, others.ratio) == (training.target, None)


def test_rows_replace_their_like_and_no_others(tmp_path: Path) -> None:
    results, page = tmp_path / "speed.json", tmp_path / "speed.md"
    write([row("a", 1.0, 2.0, "s", None, 1)], results=results, markdown=page)
    write([row("b", 3.0, 2.0, "s", 1.03, 1), row("a", 4.0, 2.0, "s", None, 1)], results=results, markdown=page)
    assert [(found["row"], found["ours"]) for found in json.loads(results.read_text())["rows"]] == [("a", 4), ("b", 3)]
    assert "| b | 3 | 2 | s | 1.50 | <= 1.03 | **no** | 1 |" in page.read_text()
