"""The committed page says what the committed figures say."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.quality.report import NOTES, PAGE, PLOT, RESULTS, write_report

ROOT = Path(__file__).parents[3]


def test_the_committed_page_comes_from_the_committed_figures(tmp_path: Path) -> None:
    write_report(ROOT / RESULTS, page=tmp_path / PAGE.name, plot=tmp_path / PLOT.name, notes=ROOT / NOTES)
    assert (tmp_path / PAGE.name).read_text() == (ROOT / PAGE).read_text()


def test_every_row_of_the_figures_is_on_the_page() -> None:
    rows = json.loads((ROOT / RESULTS).read_text())["rows"]
    lines = [line for line in (ROOT / PAGE).read_text().splitlines() if line.startswith("| ")]
    shown = [line for line in lines if not line.startswith("| contender")]
    assert len(shown) >= len(rows) > 0
