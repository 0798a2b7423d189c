"""The quality benchmark: trains every contender, writes quality.json, and from it the page and the plot.

    python -m benchmarks.quality --scale tiny            # minutes on a CPU: a closed world, models trained from scratch
    python -m benchmarks.quality --scale smol --teacher MODEL --data rows.jsonl --evaluate rows.jsonl   # for a GPU

A run that is done is not made again: what was measured is kept, one line per run, in `--cache`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from benchmarks.machine import describe
from benchmarks.quality import contenders
from benchmarks.quality.closed import FEW, MANY, ClosedWorld, Sizes
from benchmarks.quality.models import STUDENT, TEACHER
from benchmarks.quality.plan import Bench, Plan
from benchmarks.quality.records import Records, Run
from benchmarks.quality.report import NOTES, PAGE, RESULTS, write_report
from benchmarks.quality.smol import plan_and_execute
from benchmarks.quality.table import curves_of, rows_of

Execute = Callable[[Run], Mapping[str, Any]]
# Of scale tiny. In so many steps each row comes up some five times; half of them rank learning rates alike.
STEPS, SWEEP_STEPS = 2000, 1000


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=__doc__.splitlines()[0])
    parser.add_argument("--scale", choices=["tiny", "smol"], default="tiny")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/stillhouse/bench-quality")
    parser.add_argument("--seeds", type=int, help="training seeds (5; smol: 3)")
    parser.add_argument("--only", nargs="+", metavar="RECIPE", help="of the recipes, these")
    parser.add_argument("--steps", type=int, help="steps of the runs at equal steps")
    parser.add_argument("--minutes", type=float, help="start no run after this time: the table has what there is")
    parser.add_argument(
        "--teacher", default="HuggingFaceTB/SmolLM2-135M-Instruct", help="smol: hub id, folder or .gguf"
    )
    parser.add_argument("--data", type=Path, help="smol: JSONL rows with prompt and response to train on")
    parser.add_argument("--evaluate", type=Path, nargs="+", default=[], help="smol: JSONL rows to answer afterwards")
    parser.add_argument("--rows", type=int, default=200, help="smol: rows of each --evaluate file that are answered")
    return parser.parse_args()


def main() -> None:
    args, started = arguments(), time.monotonic()
    plan, execute, about = (tiny if args.scale == "tiny" else plan_and_execute)(args)
    if args.only:
        plan = replace(plan, leaders=[contender for contender in plan.leaders if contender.recipe in args.only])
    conditions = {name: value for name, value in about.items() if name != "measured"}
    records = Records(args.cache / f"{args.scale}.jsonl", about=conditions)
    bench = Bench(
        plan,
        records=records,
        execute=execute,
        say=lambda line: print(line, flush=True),
        may_start=lambda: args.minutes is None or time.monotonic() - started < 60 * args.minutes,
    )
    done = bench.all_runs()
    if bench.left_out:
        print(f"{bench.left_out} runs were left out; the same command without --minutes makes them")
    write_results(args.results, done, scale=args.scale, about=about)
    write_report(args.results, page=args.page, plot=args.page.with_suffix(".svg"), notes=NOTES)
    print(f"{args.results}, {args.page} and {args.page.with_suffix('.svg')} are written")


def tiny(args: argparse.Namespace) -> tuple[Plan, Execute, Mapping[str, Any]]:
    sizes = Sizes()
    world = ClosedWorld(teacher=TEACHER, student=STUDENT, cache=args.cache, sizes=sizes)
    plan = Plan(
        scale="tiny",
        regimes=(FEW, MANY),
        leaders=[*contenders.baselines(), contenders.ours()],
        ablations=contenders.ablations(),
        controls=contenders.controls(),
        learning_rates=(1e-3, 2e-3, 3e-3),
        steps=args.steps or STEPS,
        sweep_steps=min(args.steps or STEPS, SWEEP_STEPS),
        seeds=args.seeds or 5,
        time_seeds=min(args.seeds or 5, 3),
        control_seeds=min(args.seeds or 5, 3),
    )
    lms = {"teacher": world.teacher, "student_start": world.student()}
    about = {
        "sizes": asdict(sizes),
        "models": {name: folder.name for name, folder in world.folders.items()},
        "parameters": {name: lm.model.num_parameters() for name, lm in lms.items()},
        "measured": {name: world.test_exam.measure(lm) for name, lm in lms.items()},
    }
    return plan, world.execute, about


def write_results(path: Path, done: Sequence[Mapping[str, Any]], *, scale: str, about: Mapping[str, Any]) -> None:
    """Replaces the scale's rows and leaves those of the other scale as they are."""
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"rows": [], "curves": [], "about": {}}

    def others(name: str) -> list[Any]:
        return [row for row in known[name] if row["scale"] != scale]

    quality = {
        "machine": {**describe(device()), "date": f"{datetime.now(UTC):%Y-%m-%d}"},
        "about": {**known["about"], scale: about},
        "rows": [*others("rows"), *rows_of(done)],
        "curves": [*others("curves"), *curves_of(done)],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(quality, indent=1) + "\n", encoding="utf-8")


def device() -> str:
    return Accelerator().device.type


if __name__ == "__main__":
    main()
