"""The growth benchmark at toy size: it measures one size at a time, and draws what it measured."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from benchmarks.speed.growth import Size, draw, sweep
from benchmarks.speed.report import write_page


def test_each_size_is_measured_by_itself_and_drawn(tmp_path: Path) -> None:
    points = list(sweep(tmp_path, repeat=1, sweeps={"tokens": (4, 8), "layers": (2,)}))
    assert [(point.swept, point.value) for point in points] == [("tokens", 4), ("tokens", 8), ("layers", 2)]
    assert all(point.seconds > 0 and point.peak_mib > 0 for point in points)
    draw(points, tmp_path / "growth.svg")
    assert "<svg" in (tmp_path / "growth.svg").read_text(encoding="utf-8")
    speed = tmp_path / "speed.json"
    speed.write_text(json.dumps({"machine": {}, "rows": []}), encoding="utf-8")
    write_page(tmp_path / "before.md", speed=speed)
    report = {"standard": asdict(Size(layers=2)), "points": [asdict(point) for point in points]}
    (tmp_path / "growth.json").write_text(json.dumps(report), encoding="utf-8")
    write_page(tmp_path / "after.md", speed=speed)
    text = (tmp_path / "after.md").read_text(encoding="utf-8")
    assert text.startswith((tmp_path / "before.md").read_text(encoding="utf-8"))
    assert "| tokens | 8 | " in text
    assert "| layers | 2* | " in text
