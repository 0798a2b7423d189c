"""What the service adds to a training: the same job through it and by `python -m worker.distill`, in turn.

    python -m benchmarks.speed.overhead [--pairs 4] [--steps 150] [--teacher MODEL]

Knows processes and their processor time. Does not know what a step costs. Rows go into `benchmarks/results/speed.json`
beside the others: wall time from the first event of the training to its last one, and processor time of the training's
own process from its start to its end. What API, page and workers spend meanwhile, answering nobody, has its own row.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from app.core.settings import ServiceSettings
from app.demo.teacher import find_teacher
from app.service import TRAINING_NICE, service
from app.supervisor import Supervisor
from benchmarks.machine import describe
from benchmarks.speed.__main__ import PAGE, RESULTS
from benchmarks.speed.report import write_page
from benchmarks.speed.rows import Row, row
from tests.running_service import ENDED, free_port
from tests.tiny_models import write_rows

TARGET = 1.03
ROWS = 200


@dataclass(frozen=True, kw_only=True)
class Took:
    """Seconds of one run: from its first step to its last on the clock, of the training's processor time, and of what
    the service's other processes used meanwhile."""

    wall: float
    training: float
    others: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--teacher", default="", help="default: the demo's")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), teacher=asked.teacher or find_teacher(), steps=asked.steps, pairs=asked.pairs)
    for line in found:
        print(line)
    write(found, results=RESULTS, markdown=PAGE)


def measure(folder: Path, *, teacher: str, steps: int, pairs: int) -> list[Row]:
    """The rows of the table. The first pair warms up the system's caches and is not counted."""
    rows = write_rows(folder / "rows.jsonl", ROWS)
    alone, served = [], []
    with running(folder / "home") as (supervisor, http):
        with rows.open("rb") as file:
            dataset = http.post("/v1/datasets", files={"file": file}, data={"name": "rows"}).raise_for_status().json()
        by_path = describe_job(teacher, steps, kind="file", path=str(rows))
        by_id = describe_job(teacher, steps, kind="dataset", dataset_id=dataset["id"])
        for pair in range(pairs + 1):
            if pair % 2:  # turn about, so that a machine that gets busier speaks for neither
                served.append(through_service(supervisor, http, by_id))
            alone.append(by_itself(folder / str(pair), by_path))
            if not pair % 2:
                served.append(through_service(supervisor, http, by_id))
    ours, plain = (
        {name: statistics.median(getattr(took, name) for took in runs[1:]) for name in ("wall", "training", "others")}
        for runs in (served, alone)
    )
    return [
        row("a job through the service, time of its steps", ours["wall"], plain["wall"], "s", TARGET, pairs),
        row("a job through the service, processor", ours["training"], plain["training"], "processor s", TARGET, pairs),
        row("API, page and workers meanwhile", ours["others"], None, "processor s", None, pairs),
    ]


def describe_job(teacher: str, steps: int, **data: Any) -> dict[str, Any]:
    """A plain job that says something at every step, as the default is."""
    return {
        "recipe": "kd",
        "teacher": {"model": teacher},
        "student": {"kind": "from_teacher", "layers": 2, "choice": "first"},
        "data": {"dev_rows": 8, "teacher_states": "off", **data},
        "training": {"max_steps": steps, "batch_size": 4, "checkpoint_every": 0},
        "evaluation": {"every_steps": steps, "rouge_rows": 0, "samples": 0, "select": "last"},
    }


def by_itself(folder: Path, config: Mapping[str, Any]) -> Took:
    """By `python -m worker.distill`, as friendly to others as the service's trainings are."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    command = [sys.executable, "-u", "-m", "worker.distill", str(folder / "config.json"), str(folder / "out")]
    begun, ended = 0.0, 0.0
    with subprocess.Popen(
        ["nice", "-n", str(TRAINING_NICE), *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step "):
                ended = time.time()
                begun = begun or ended
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"the run by itself ended with status {process.returncode}")
    return Took(wall=ended - begun, training=used.ru_utime + used.ru_stime)


def through_service(supervisor: Supervisor, http: httpx.Client, config: Mapping[str, Any]) -> Took:
    """Submitted, and waited for without looking often."""
    before = _used(supervisor)
    job = http.post("/v1/jobs", json={"name": "overhead", "config": config}).raise_for_status().json()
    while job["status"] not in ENDED:
        supervisor.tick(1.0)
        job = http.get(f"/v1/jobs/{job['id']}").raise_for_status().json()
    if job["status"] != "succeeded":
        raise SystemExit(f"the job ended as {job['status']}: {job['error_message']}")
    after = _used(supervisor)
    steps = _step_times(http, job["id"])
    return Took(
        wall=steps[-1] - steps[0],
        training=after["children"] - before["children"],
        others=after["themselves"] - before["themselves"],
    )


def _used(supervisor: Supervisor) -> dict[str, float]:
    """Processor seconds so far: of the service's processes, and of the training worker's children that have ended."""
    processes = {name: psutil.Process(pid) for name, pid in supervisor.pids().items()}
    themselves = sum(sum(process.cpu_times()[:2]) for process in processes.values())
    return {"themselves": themselves, "children": sum(processes["training"].cpu_times()[2:4])}


def _step_times(http: httpx.Client, job_id: str) -> list[float]:
    """When the service was told of each step."""
    times: list[float] = []
    after = 0
    while events := http.get(f"/v1/jobs/{job_id}/events", params={"after": after, "limit": 1000}).json()["data"]:
        after = events[-1]["seq"]
        times += [_seconds(event["created_at"]) for event in events if event["event"]["kind"] == "step"]
    return times


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()


@contextmanager
def running(home: Path) -> Iterator[tuple[Supervisor, httpx.Client]]:
    """The service as `stillhouse up` starts it, on ports of its own, with its default intervals."""
    environment = {
        "STILLHOUSE_HOME": str(home),
        "STILLHOUSE_API_PORT": str(free_port()),
        "STILLHOUSE_UI_PORT": str(free_port()),
        "OMP_WAIT_POLICY": "PASSIVE",  # as the service has it for its workers; the run by itself inherits it here
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        settings = ServiceSettings()
        with (
            service(settings) as supervisor,
            httpx.Client(base_url=settings.resolved_api_url, timeout=120.0, trust_env=False) as http,
        ):
            yield supervisor, http


def write(found: Sequence[Row], *, results: Path, markdown: Path) -> None:
    """Puts the rows behind those of other runs of the benchmark, instead of earlier ones of the same names."""
    known = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {"machine": describe(), "rows": []}
    rows = {line["row"]: line for line in known["rows"]} | {line.row: asdict(line) for line in found}
    report = {**known, "rows": list(rows.values())}
    results.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    write_page(markdown, speed=results)


if __name__ == "__main__":
    main()
