"""How soon the page can be used: `python -m benchmarks.page [--jobs N] [--steps N] [--rounds N]`.

Real API and page processes on SQLite, real Chromium, a new browser profile each time. Asks for the first page while the
service is empty, then for the list and a long job's curves when there are years of jobs. Prints JSON: seconds from the
address being typed until the named thing can be seen (and, for the form, written in), and what processor time API, page
process and browser spent on it, which other work on the machine changes far less; its load average says how much there
was.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import Browser, sync_playwright

from benchmarks.load.fill import CURVES, Filled, fill
from benchmarks.load.house import BACK_ENDS, engine_of, job_of, open_house
from benchmarks.machine import describe
from tests.running_service import RunningService
from tests.tiny_models import make_tiny_model, write_rows
from ui.screenshots import FLAGS

FORM, LIST, HEAD = "#f-name textarea, #f-name input", "#jobs tr[data-job]", "#job-head h2"
CURVE = "#charts .js-plotly-plot .scatterlayer .trace"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--steps", type=int, default=10_000, help=f"of the long job, each of {len(CURVES)} metrics")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        home = Path(folder)
        with open_house(BACK_ENDS[0], home / "home", without=("training", "comparing")) as house:
            empty = {"form": opened(browser, house, "", FORM, rounds=asked.rounds)}
            filled = fill_up(house, home, jobs=asked.jobs, steps=asked.steps)
            long_job = f"?tab=progress&job={filled.long_job}"
            wanted = {
                "form": ("", FORM),
                "list": ("?tab=jobs", LIST),
                "long_job_head": (long_job, HEAD),
                "long_job_curve": (long_job, CURVE),
            }
            full = {
                name: opened(browser, house, query, seen, rounds=asked.rounds) for name, (query, seen) in wanted.items()
            }
        browser.close()
    sizes = {"jobs": asked.jobs, "metric_points": asked.steps * len(CURVES)}
    print(json.dumps({"machine": describe(), "empty": empty, "full": full | sizes}, indent=2))


def fill_up(house: RunningService, home: Path, *, jobs: int, steps: int) -> Filled:
    """One job that the API itself stored, and so many more, one of them long."""
    teacher, rows = make_tiny_model(home / "teacher"), write_rows(home / "rows.jsonl")
    house.post("/v1/jobs", json=job_of("first", dataset_id=house.upload(rows), teacher=teacher, steps=steps))
    engine = engine_of(house)
    try:
        return fill(engine, jobs=jobs, events=steps + 10 * jobs, long_steps=steps)
    finally:
        engine.dispose()


def opened(browser: Browser, house: RunningService, query: str, seen: str, *, rounds: int) -> Mapping[str, Any]:
    """Median and slowest seconds until `seen` is there, over so many new browser profiles, with the median processor
    time of each side and the machine's load."""
    seconds, spent = [], []
    for _ in range(rounds):
        before = _processor_s(house)
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        page = context.new_page()
        started = time.perf_counter()
        page.goto(f"http://127.0.0.1:{house.settings.ui_port}/{query}", wait_until="commit")
        page.locator(seen).first.wait_for(timeout=120_000)
        seconds.append(time.perf_counter() - started)
        after = _processor_s(house)
        spent.append({side: after[side] - before[side] for side in before})
        context.close()
    return {
        "median_s": round(statistics.median(seconds), 2),
        "slowest_s": round(max(seconds), 2),
        "processor_s": {side: round(statistics.median(one[side] for one in spent), 2) for side in spent[0]},
        "load_average": round(os.getloadavg()[0], 1),
    }


def _processor_s(house: RunningService) -> dict[str, float]:
    """Processor seconds so far of the service's processes, and of every browser process of this program."""
    roots = {name: psutil.Process(pid) for name, pid in house.supervisor.pids().items()}
    of = {name: [root, *root.children(recursive=True)] for name, root in roots.items()}
    of["browser"] = [one for one in psutil.Process().children(recursive=True) if _is_browser(one)]
    return {side: sum(map(_spent, processes)) for side, processes in of.items()}


def _is_browser(process: psutil.Process) -> bool:
    try:
        return "chrom" in process.name()
    except psutil.NoSuchProcess:
        return False


def _spent(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return times.user + times.system


if __name__ == "__main__":
    main()
