"""`make bench-speed`: every row of the table, written to benchmarks/results/speed.json and docs/benchmarks/speed.md.

    python -m benchmarks.speed [--rows losses scrg steps memory liger] [--repeat 5] [--folder DIR]
                              [--liger-tokens 1024 8192]

Rows that are not asked for keep what an earlier run on the same machine found.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.speed.report import write_page
from benchmarks.speed.rows import GROUPS, Plan

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "benchmarks/results/speed.json", ROOT / "docs/benchmarks/speed.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="*", choices=list(GROUPS), default=list(GROUPS))
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--liger-tokens", type=int, nargs="*", default=list(Plan.loss_positions))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "stillhouse-bench-speed")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    plan = Plan(folder=args.folder, repeat=args.repeat, loss_positions=tuple(args.liger_tokens))
    machine = describe(packages=("torch", "transformers", "trl", "liger-kernel")) | {"threads": "1"}
    known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"machine": machine, "rows": []}
    keep = known["machine"] == machine and set(args.rows) != set(GROUPS)
    rows = {found["row"]: found for found in known["rows"]} if keep else {}
    for found in (found for group in args.rows for found in GROUPS[group](plan)):
        print(found, flush=True)
        rows[found.row] = asdict(found)
        _write({"machine": machine, "rows": list(rows.values())})


def _write(report: dict[str, Any]) -> None:
    """After every row, since one may take minutes."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    write_page(PAGE, speed=RESULTS)


if __name__ == "__main__":
    main()
