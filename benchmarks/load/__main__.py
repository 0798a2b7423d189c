"""What the service carries, on both back ends: `make bench-load`.

    python -m benchmarks.load [--scale 0.01] [--back-end "sqlite + files"]

Submits jobs as fast as the API takes them, reads beside 100,000 jobs and 5 million events (and beside a tenth of
them), watches a training with 200 streams, and times how soon a free worker has the next job. Writes
benchmarks/results/load.json and, from it, docs/benchmarks/load.md. PostgreSQL and Redis are those of
STILLHOUSE_TEST_DATABASE_URL and STILLHOUSE_TEST_BROKER_URL.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.load import phases
from benchmarks.load.house import BACK_ENDS, describe_database, open_house
from benchmarks.load.report import missed, write_report
from benchmarks.load.watching import watch
from benchmarks.machine import describe
from tests.tiny_models import make_tiny_model, write_rows

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/results/load.json"
REPORT = ROOT / "docs/benchmarks/load.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of jobs, events and requests")
    parser.add_argument("--back-end", choices=BACK_ENDS, action="append", help="only these")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--report", type=Path, default=REPORT)
    given = parser.parse_args()
    results: dict[str, Any] = {"date": datetime.now(UTC).date().isoformat(), "scale": given.scale}
    results |= {"machine": describe(packages=("fastapi", "sqlalchemy", "celery")), "runs": []}
    for back_end in given.back_end or BACK_ENDS:
        results["runs"].append(measure(back_end, scale=given.scale))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(results, indent=2) + "\n")
    given.report.parent.mkdir(parents=True, exist_ok=True)
    given.report.write_text(write_report(results))
    for line in missed(results):
        print("MISSED:", line)


def measure(back_end: str, *, scale: float) -> dict[str, Any]:
    """All phases on one back end. The first house has no worker, so that nothing but the API works."""

    def scaled(number: int, least: int) -> int:
        return max(least, round(number * scale))

    run: dict[str, Any] = {"back_end": back_end}
    with tempfile.TemporaryDirectory(prefix="stillhouse-load-") as folder:
        teacher = make_tiny_model(Path(folder) / "teacher", layers=4, seed=1)
        rows = write_rows(Path(folder) / "rows.jsonl", 64)
        with open_house(back_end, Path(folder) / "reading", without=("ui", "training", "comparing")) as house:
            run["database"] = describe_database(house)
            run["submit"] = _told(phases.submit(house, teacher, rows, jobs=scaled(1000, 20)))
            run["read"] = []
            for part in (0.1, 0.9):
                sizes = {"jobs": scaled(round(100_000 * part), 20), "events": scaled(round(5_000_000 * part), 2000)}
                steps = scaled(20_000 if part == 0.1 else 200_000, 200)
                run["read"].append(_told(phases.read(house, **sizes, long_steps=steps, requests=scaled(300, 20))))
        with open_house(back_end, Path(folder) / "training", without=("ui", "comparing")) as house:
            run["start"] = _told(phases.starts(house, teacher, rows, jobs=scaled(15, 3)))
            run["watch"] = _told(
                watch(house, teacher, rows, watchers=scaled(200, 20), windows=scaled(8, 2), window_s=max(3, 10 * scale))
            )
    return run


def _told(figures: dict[str, Any]) -> dict[str, Any]:
    print(json.dumps(figures), flush=True)
    return figures


if __name__ == "__main__":
    main()
