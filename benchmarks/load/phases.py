"""What is measured: submitting, reading beside millions of rows, starting after another job.

Knows the service from outside, over HTTP, and fills its database from inside. Each function returns JSON-able figures.
"""

from __future__ import annotations

import random
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
