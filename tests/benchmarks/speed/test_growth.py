"""The growth benchmark at toy size: it measures one size at a time, and draws what it measured."""

from __future__ import annotations

from pathlib import Path

from benchmarks.speed.growth import draw, sweep


def test_each_size_is_measured_by_itself_and_drawn(tmp_path: Path) -> None:
    points = list(sweep(tmp_path, repeat=1, sweeps={"tokens": (4, 8), "layers": (2,)}))
    assert [(point.swept, point.value) for point in points] == [("tokens", 4), ("tokens", 8), ("layers", 2)]
    assert all(point.seconds > 0 and point.peak_mib > 0 for point in points)
    draw(points, tmp_path / "growth.svg")
    assert "<svg" in (tmp_path / "growth.svg").read_text(encoding="utf-8")
