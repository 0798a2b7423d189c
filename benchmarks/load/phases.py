"""What is measured: submitting, reading beside millions of rows, watching a training, starting after one.

Knows the service from outside, over HTTP, and fills its database from inside. Each function returns JSON-able figures.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.load.clients import at_once, percentiles, timed
from benchmarks.load.fill import Filled, fill
from benchmarks.load.house import engine_of, job_of
from tests.running_service import RunningService

Figures = dict[str, Any]


def submit(house: RunningService, teacher: Path, rows: Path, *, jobs: int, clients: int = 8) -> Figures:
    """So many jobs as fast as the API takes them; then every one of them must be listed exactly once."""
    dataset_id = house.upload(rows)
    bodies = [job_of(f"load {i}", dataset_id=dataset_id, teacher=teacher, steps=1) for i in range(jobs)]
    started = time.perf_counter()
    house.post("/v1/jobs", json=bodies[0], params={"dry_run": True}, timeout=180)  # loads transformers
    first_s = time.perf_counter() - started
    ids, seconds, total_s = at_once(house.settings.resolved_api_url, bodies, clients=clients)
    listed = [job["name"] for job in _all_jobs(house)]
    return {
        "jobs": jobs,
        "clients": clients,
        "first_request_s": round(first_s, 1),
        "jobs_per_s": round(jobs / total_s, 1),
        **percentiles(seconds),
        "lost": len({body["name"] for body in bodies} - set(listed)) + jobs - len(set(ids)),
        "doubled": len(listed) - len(set(listed)),
    }


def _all_jobs(house: RunningService) -> Iterator[Mapping[str, Any]]:
    after = None
    while True:
        page = house.get("/v1/jobs", limit=1000, **({"after": after} if after else {}))
        yield from page["data"]
        if not page["has_more"]:
            return
        after = page["data"][-1]["id"]


def read(house: RunningService, *, jobs: int, events: int, long_steps: int, requests: int) -> Figures:
    """Fills the database up by so much, then asks for pages at random places in it."""
    engine = engine_of(house)
    try:
        started = time.perf_counter()
        filled = fill(engine, jobs=jobs, events=events, long_steps=long_steps, seed=jobs)
        filled_s = time.perf_counter() - started
    finally:
        engine.dispose()
    figures: Figures = {"jobs": jobs, "events": events, "curve_points": long_steps * 20, "filled_s": round(filled_s, 1)}
    for name, asked in _questions(filled, requests).items():
        timed(house.http, asked[:10])  # caches are warm in a service that is used
        figures[name] = percentiles(timed(house.http, asked))
    return figures


def _questions(filled: Filled, requests: int) -> Mapping[str, list[tuple[str, Mapping[str, object]]]]:
    chance = random.Random(1)
    some = [chance.choice(filled.some_jobs) for _ in range(requests)]
    long_job = f"/v1/jobs/{filled.long_job}"
    places = [chance.randrange(filled.long_steps) for _ in range(requests)]
    return {
        "list": [("/v1/jobs", {"after": job_id}) for job_id in some],
        "list_by_status": [("/v1/jobs", {"after": job_id, "status": "failed"}) for job_id in some],
        "read": [(f"/v1/jobs/{job_id}", {}) for job_id in some],
        "events_page": [(f"{long_job}/events", {"after": place, "limit": 100}) for place in places],
        "metric_series": [(f"{long_job}/metrics", {}) for _ in range(requests)],
    }


def watch(house: RunningService, teacher: Path, rows: Path, *, watchers: int, windows: int, window_s: float) -> Figures:
    """Step times of one training with and without so many open streams, in turns: the machine may be busy otherwise,
    so each window is compared with the one before it."""
    job = job_of("watched", dataset_id=house.upload(rows), teacher=teacher, steps=10_000_000)
    job_id = house.post("/v1/jobs", json=job)["id"]
    house.until(lambda: house.get(f"/v1/jobs/{job_id}")["step"] > 20, timeout_s=120)
    ratios, alone, watched, events_each = [], [], [], 0
    for _ in range(windows):
        alone.append(statistics.median(_step_seconds(house, job_id, window_s)))
        with _Watchers(house, job_id, watchers) as there:
            watched.append(statistics.median(_step_seconds(house, job_id, window_s)))
            events_each += there.leave()
        ratios.append(watched[-1] / alone[-1] - 1)
    house.post(f"/v1/jobs/{job_id}/cancel")
    house.wait_for_end(job_id)
    return {
        "watchers": watchers,
        "windows": windows,
        "window_s": window_s,
        "median_step_alone_ms": round(1000 * statistics.median(alone), 3),
        "median_step_watched_ms": round(1000 * statistics.median(watched), 3),
        "slower_percent": round(100 * statistics.median(ratios), 2),
        "slower_percent_by_window": [round(100 * ratio, 1) for ratio in ratios],
        "events_to_each_watcher": events_each,
    }


def _newest(house: RunningService, job_id: str) -> int:
    """Number of the newest event."""
    after = 0
    while page := house.get(f"/v1/jobs/{job_id}/events", after=after, limit=1000)["data"]:
        after = page[-1]["seq"]
    return after


def _wait(house: RunningService, seconds: float) -> None:
    """Raises when a process of the service ends meanwhile."""
    ends_at = time.monotonic() + seconds
    house.until(lambda: time.monotonic() >= ends_at, timeout_s=seconds + 60)


def _step_seconds(house: RunningService, job_id: str, window_s: float) -> list[float]:
    """What each step of the next `window_s` seconds took, as the trainer measured it."""
    _wait(house, 1.0)
    after = _newest(house, job_id)
    _wait(house, window_s)
    seconds = []
    while page := house.get(f"/v1/jobs/{job_id}/events", after=after, limit=1000)["data"]:
        steps = [row["event"] for row in page if row["event"]["kind"] == "step"]
        seconds += [step["tokens"] / step["tokens_per_s"] for step in steps]
        after = page[-1]["seq"]
    return seconds


class _Watchers:
    """A process with so many open streams of the job, from its newest event on."""

    def __init__(self, house: RunningService, job_id: str, count: int) -> None:
        self._after = _newest(house, job_id)
        address = [house.settings.host, str(house.settings.api_port)]
        path = f"/v1/jobs/{job_id}/events?after={self._after}"
        command = [sys.executable, "-m", "benchmarks.load.watchers", *address, path, str(count)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError("the watchers did not get ready")

    def __enter__(self) -> _Watchers:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def leave(self) -> int:
        """Ends the streams. How many events each brought; raises when one ended early or left an event out."""
        told = json.loads(self._process.communicate("", timeout=60)[0])
        expected = list(range(self._after + 1, self._after + 1 + len(told["ids"])))
        if not told["all_stayed"] or told["ids"] != expected:
            raise RuntimeError(f"a stream broke or left events out: {told['ids'][:3]}... of {expected[:3]}...")
        return len(told["ids"])


def starts(house: RunningService, teacher: Path, rows: Path, *, jobs: int) -> Figures:
    """From a free slot to a job that has it: to the claim, and to the first word of the training itself, once for jobs
    that find an idle worker, and once for jobs that wait for the one before them."""
    dataset_id = house.upload(rows)

    def submitted(number: int) -> str:
        body = job_of(f"start {number}", dataset_id=dataset_id, teacher=teacher, steps=1)
        found: str = house.post("/v1/jobs", json=body)["id"]
        return found

    to_idle = [house.wait_for_end(submitted(i), timeout_s=120) for i in range(jobs)]
    waiting = [submitted(jobs + i) for i in range(jobs + 1)]
    in_turn = [house.wait_for_end(job_id, timeout_s=60.0 * jobs) for job_id in waiting]
    in_turn.sort(key=lambda job: job["started_at"])
    freed = [_time(job["created_at"]) for job in to_idle] + [_time(job["finished_at"]) for job in in_turn[:-1]]
    started = [*to_idle, *in_turn[1:]]
    claims = [_time(job["started_at"]) - free for job, free in zip(started, freed, strict=True)]
    trains = [_first_word(house, job["id"]) - free for job, free in zip(started, freed, strict=True)]
    return {
        "jobs": len(started),
        "to_claim": percentiles(claims),
        "to_claim_idle": percentiles(claims[:jobs]),
        "to_claim_in_turn": percentiles(claims[jobs:]),
        "to_training": percentiles(trains),
    }


def _first_word(house: RunningService, job_id: str) -> float:
    """When the training process first reported, as the service stored it."""
    page = house.get(f"/v1/jobs/{job_id}/events", limit=1000)["data"]
    return next(_time(row["created_at"]) for row in page if row["event"]["kind"] != "status")


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
