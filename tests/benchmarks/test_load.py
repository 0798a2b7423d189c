"""What `make bench-load` measures, at toy size on real processes, and what its page says of it. No times are judged."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, func, select

from app.core.db import curves, jobs
from app.core.db.session import make_sessions
from app.core.db.tables import EventRow, Job, Metric
from benchmarks.load import phases
from benchmarks.load.fill import CURVES, fill
from benchmarks.load.house import BACK_ENDS, describe_database, open_house
from benchmarks.load.report import READS, missed, write_report
from benchmarks.load.watching import watch
from tests.app.conftest import Clock, make_config
from tests.tiny_models import write_rows

MACHINE = {"cpu": "a processor", "cores": "2", "python": "3"}


@pytest.mark.slow
def test_a_toy_run_measures_everything(tmp_path: Path, tiny_teacher: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl")
    with open_house(BACK_ENDS[0], tmp_path / "home", without=("ui", "comparing")) as house:
        run: dict[str, Any] = {"back_end": BACK_ENDS[0], "database": describe_database(house)}
        run["submit"] = phases.submit(house, tiny_teacher, rows, jobs=2, clients=2)
        run["start"] = phases.starts(house, tiny_teacher, rows, jobs=1)
        run["watch"] = watch(house, tiny_teacher, rows, watchers=3, windows=1, window_s=1.0)
        run["read"] = [phases.read(house, jobs=n, events=20 * n, long_steps=n, requests=5) for n in (10, 40)]
    assert (run["submit"]["lost"], run["submit"]["doubled"]) == (0, 0)
    assert run["start"]["jobs"] == 2
    assert run["watch"]["events_to_each_watcher"] > 0
    assert run["watch"]["trainer_cpu_watched_ms"] > 0
    assert [run["read"][1][name]["requests"] for name in READS] == [5] * len(READS)
    page = write_report({"date": "2026-01-01", "scale": 0.001, "machine": MACHINE, "runs": [run]})
    assert "at 0.001 of its size" in page
    assert "| metric series |" in page
    assert "50 jobs, 1,000 events" in page


def test_what_is_filled_in_is_what_the_service_stores(
    engine: Engine,
) -> None:
    """On both back ends: numbers of rows, and curves with their ranges."""
    sessions = make_sessions(engine)
    with sessions.begin() as session:
        jobs.create(session, name="pattern", config=make_config(), priority=0, now=Clock()())
    filled = fill(engine, jobs=7, events=100, long_steps=40)
    with sessions.begin() as session:
        numbers = [session.scalar(select(func.count()).select_from(table)) for table in (Job, EventRow, Metric)]
        assert numbers == [1 + 7, 1 + 100, 40 * len(CURVES)]  # the pattern, and its status
        found = curves.read(session, job_id=filled.long_job, names=None, max_points=20)
        assert [len(curve.points) for curve in found] == [20] * len(CURVES)
        assert jobs.get(session, filled.long_job).last_seq == 40


def figures() -> dict[str, Any]:
    """Of a run that misses nothing."""
    fast = {"p50_ms": 10.0, "p99_ms": 20.0}
    part = {"jobs": 1, "events": 1, "curve_points": 1} | dict.fromkeys(READS, fast)
    return {
        "back_end": "here",
        "submit": {"lost": 0, "doubled": 0},
        "read": [dict(part), dict(part)],
        "watch": {"slower_percent": 1.0},
        "start": {"to_claim": {"p95_ms": 5.0}},
    }


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("submit", "lost"), 1, "1 jobs lost"),
        (("submit", "doubled"), 2, "2 doubled"),
        (("read", 1, "read"), {"p50_ms": 10.0, "p99_ms": 100.1}, "read takes 100.1 ms"),
        (("read", 1, "list"), {"p50_ms": 18.0, "p99_ms": 20.0}, "list slows down"),
        (("watch", "slower_percent"), 3.1, "3.1 % slower"),
        (("start", "to_claim", "p95_ms"), 2000.1, "2000.1 ms at p95"),
    ],
)
def test_each_target_that_is_missed_is_named(path: tuple[Any, ...], value: object, said: str) -> None:
    assert list(missed({"runs": [figures()]})) == []
    run = copy.deepcopy(figures())
    place: Any = run
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    (line,) = missed({"runs": [run]})
    assert said in line
