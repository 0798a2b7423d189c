"""The page of the speed benchmark, from its result files.

Knows the shapes of `speed.json` and `growth.json`. Does not measure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HEAD = """# What a step costs

Made by `make bench-speed` from `benchmarks/results/speed.json`. Both engines train the same student (SmolLM2-135M cut
to 10 layers, 64M parameters) from the same teacher on the same prompts: batch 4, 82 prompt and 64 new tokens, a stop
token that is never drawn, so that the work is equal. One thread, processor time of the whole process, steps of all
engines in turn, median after a step to warm up. The peer is `DistillationTrainer` of TRL, forward KL, float32 without
gradient checkpointing, the faster of the two settings that were tried (its bfloat16 autocast took 1.1 times as long).
Ours is as `python -m worker.distill` runs it.

*Peak memory* is the most that torch had allocated during one step (8 rows, 512 response positions), above what was
there when the step began: models and the optimizer's state. It is measured once, after a step to warm up: the same
sizes give the same peak. *SCRG* is what it adds to drawing a fresh batch: the difference between drawing it with SCRG
and without, with the same random numbers, so that the teacher's pass, which the loss needs anyway, is in both. Unless
a row says otherwise it corrects by the recipe's rule, the first mismatch with the teacher's most probable token.
*The recipe's batches at a time*: four are drawn in one generation and used in four steps; a step's cost is the mean of
the four, its peak memory that of the one that draws. *With the recipe's batches* an eighth of the steps is fresh, drawn
so, and the others are from the data, whose states of the teacher are kept; all choose from twice as many rows. *With
schedule and buffer* (the adaptive scheme at phi 0.5 with a full buffer, averaged over a run) a quarter is fresh, a
quarter replayed, which the teacher reads again, and half from
the data. Both rows are put together from measured steps of each kind.

Liger's loss is its chunked JSD with `compiled=False`, ours runs in slices of 6 Mi logits, both in float32 at a hidden
size of 256. Liger's chunk holds 1,024 tokens, for which it takes 10 GiB; eight such chunks, 8,192 tokens, were not
run. *Start of a job* is processor time after Python's imports. *A job through the service* (`python -m
benchmarks.speed.overhead`) is one of forward KL on short rows through `stillhouse up` on SQLite, beside the same one by
`python -m worker.distill`, in turn: from its first step to its last on the clock, and the processor time of its own
process from start to end.
"""
GROWTH = """
## As work grows

One size changed at a time, the others as marked with a star, on random Llamas of width 128: a `mgsr` step on fresh
samples with the recipe's rounds, one thread, one step after one to warm up. Processor seconds, and the peak above what
was there when the step began; the dotted lines grow as fast as the size does. Single readings, beside other work: the
point with the star was read three times, and time differed by half. Made by `python -m benchmarks.speed.growth` from
`benchmarks/results/growth.json`.

![Time and peak memory of a step over tokens, vocabulary, rows and layers](growth.svg)

| size | value | processor s | peak MiB |
|---|---|---|---|
"""


def write_page(path: Path, *, speed: Path) -> None:
    """The page from the result file `speed`, and from `growth.json` beside it if there is one."""
    text, growth = page(json.loads(speed.read_text(encoding="utf-8"))), speed.with_name("growth.json")
    if growth.exists():
        text += growth_section(json.loads(growth.read_text(encoding="utf-8")))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def growth_section(report: Mapping[str, Any]) -> str:
    """Markdown: how a step grows, from `growth.json`."""
    standard = report["standard"]
    lines = [
        f"| {point['swept']} | {point['value']:,}{'*' * (standard[point['swept']] == point['value'])} "
        f"| {_number(point['seconds'])} | {point['peak_mib']:,.0f} |"
        for point in report["points"]
    ]
    return GROWTH + "\n".join(lines) + "\n"


def page(report: Mapping[str, Any]) -> str:
    """Markdown: what was measured, on what, and the table."""
    machine = ", ".join(f"{name} {value}" for name, value in report["machine"].items())
    lines = [HEAD, f"Machine: {machine}.", "", "| row | ours | peer | unit | ratio | target | met | runs |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for found in report["rows"]:
        ratio, target = found["ratio"], found["target"]
        met = "" if ratio is None or target is None else "yes" if ratio <= target else "**no**"
        cells = [
            found["row"],
            _number(found["ours"]),
            "" if found["peer"] is None else _number(found["peer"]),
            found["unit"],
            "" if ratio is None else f"{ratio:.2f}",
            "" if target is None else f"<= {target:g}",
            met,
            str(found["runs"]),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
