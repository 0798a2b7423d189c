"""The result of a load run as a page, and which promises it misses.

Knows the shape of load.json and the targets. Does not measure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

READS = ("list", "list_by_status", "read", "events_page", "metric_series")
READ_P99_MS = 100.0
# p99 of so few requests on a shared machine is noisy; medians tell whether a table's size matters.
FLAT = 1.5
WATCHED_PERCENT = 3.0
START_P95_MS = 2000.0
# Of one core, used by programs that have nothing to do with the measurement: from here on times tell of those too.
BUSY_PERCENT = 50.0

_HEAD = """# Load

Made by `make bench-load` from `benchmarks/results/load.json`; the code is in `benchmarks/load/`. {machine}.
Clients, API, database, broker and trainer share these cores. Times are over HTTP, answers read, milliseconds.

"""

_BUSY = """The machine was busy with other work all the time, so times say little: the same reading takes twice as long
in some minutes as in others. Counts stand (nothing lost, doubled or left out), and so does processor time. Times on a
machine of its own are still to be measured.
"""


def write_report(results: Mapping[str, Any]) -> str:
    machine = results["machine"]
    facts = f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}, {results['date']}"
    if results["scale"] != 1:
        facts += f"; everything at {results['scale']:g} of its size"
    parts = [_HEAD.format(machine=facts)]
    if any(run["watch"].get("elsewhere_percent", 0) > BUSY_PERCENT for run in results["runs"]):
        parts.append(_BUSY)
    for run in results["runs"]:
        parts += [*_run(run), ""]
    missing = list(missed(results))
    parts.append("Missed: " + "; ".join(missing) + "." if missing else "Every target is met.")
    return "\n".join(parts) + "\n"


def missed(results: Mapping[str, Any]) -> Iterator[str]:
    """One line for every target that a run misses."""
    for run in results["runs"]:
        where, submit = run["back_end"], run["submit"]
        if submit["lost"] or submit["doubled"]:
            yield f"{where}: {submit['lost']} jobs lost, {submit['doubled']} doubled"
        small, large = run["read"]
        for name in READS:
            if large[name]["p99_ms"] > READ_P99_MS:
                yield f"{where}: {name} takes {large[name]['p99_ms']} ms at p99"
            if name != "metric_series" and large[name]["p50_ms"] > FLAT * small[name]["p50_ms"] + 2:
                yield f"{where}: {name} slows down with the table"
        if run["watch"]["slower_percent"] > WATCHED_PERCENT:
            yield f"{where}: training is {run['watch']['slower_percent']} % slower when it is watched"
        if run["start"]["to_claim"]["p95_ms"] > START_P95_MS:
            yield f"{where}: a free slot has a job after {run['start']['to_claim']['p95_ms']} ms at p95"


def _run(run: Mapping[str, Any]) -> Iterator[str]:
    submit, watch, start = run["submit"], run["watch"], run["start"]
    small, large = run["read"]
    version, *settings = run["database"].values()
    names = list(run["database"])[1:]
    yield f"## {run['back_end']}\n"
    yield f"{version}, {', '.join(f'{name} {value}' for name, value in zip(names, settings, strict=True))}.\n"
    yield (
        f"- **Submitting** {submit['jobs']:,} jobs over {submit['clients']} connections: {submit['jobs_per_s']} a "
        f"second, p50 {submit['p50_ms']}, p99 {submit['p99_ms']}; {submit['lost']} lost, {submit['doubled']} doubled."
    )
    yield (
        f"- **Watching**: {watch['watchers']} streams of one training; its median step takes "
        f"{watch['median_step_watched_ms']} ms with them and {watch['median_step_alone_ms']} ms without, "
        f"{watch['slower_percent']} % more (median of {watch['windows']} pairs of {watch['window_s']:g} s; "
        f"{watch['events_to_each_watcher']:,} events to each watcher, none left out). A step's processor time is "
        f"{watch['trainer_cpu_watched_ms']} ms with them and {watch['trainer_cpu_alone_ms']} ms without, "
        f"{watch['trainer_cpu_more_percent']} % more. Of one core the API uses {watch['api_percent_watched']} % "
        f"instead of {watch['api_percent_alone']} %, the watchers use {watch['watchers_percent']} %, and what has "
        f"nothing to do with the measurement (a database server counts there) {watch['elsewhere_percent']} %."
    )
    yield (
        f"- **Starting**: from a free slot to the next job's claim p50 {start['to_claim']['p50_ms']}, "
        f"p95 {start['to_claim']['p95_ms']}; to the first word of its training process p50 "
        f"{start['to_training']['p50_ms']}, p95 {start['to_training']['p95_ms']} ({start['jobs']} jobs)."
    )
    yield ""
    yield f"| reading | {_size(small)} | | {_size(small, large)} | |"
    yield "|---|---|---|---|---|"
    yield "| | p50 | p99 | p50 | p99 |"
    for name in READS:
        cells = " | ".join(f"{part[name]['p50_ms']} | {part[name]['p99_ms']}" for part in (small, large))
        yield f"| {name.replace('_', ' ')} | {cells} |"
    yield f"| points of the longest run's 20 curves | {small['curve_points']:,} | | {large['curve_points']:,} | |"


def _size(*parts: Mapping[str, Any]) -> str:
    jobs, events = (sum(part[name] for part in parts) for name in ("jobs", "events"))
    return f"{jobs:,} jobs, {events:,} events"
