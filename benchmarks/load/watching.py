"""What 200 streams of its events cost a training: wall time and processor time, with them and without, in turns.

Knows the service over HTTP, and its processes. Does not know how a stream works.

On a machine that does other things too, the time a step takes says more about those than about the streams. So the
processor time that the training uses for a step stands beside it, and what API, streams and everything else used.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.load.house import job_of
from tests.running_service import RunningService

# Every step samples: in a mixture the median would jump between two kinds of steps.
_EVERY_STEP_ALIKE = {"kind": "on_policy", "max_new_tokens": 8}


@dataclass(frozen=True, kw_only=True)
class Window:
    """Some seconds of a training. Shares are of one processor; `elsewhere` is what no process of this program used."""

    steps: int
    median_step_s: float
    trainer_s_per_step: float
    api: float
    watchers: float
    elsewhere: float
    events: int


def watch(
    house: RunningService, teacher: Path, rows: Path, *, watchers: int, windows: int, window_s: float
) -> dict[str, Any]:
    """One training with and without so many open streams. Pairs of windows, the order of which turns around from pair
    to pair, so that a machine that gets busier or idler favours neither."""
    job = job_of("watched", dataset_id=house.upload(rows), teacher=teacher, steps=10_000_000)
    job["config"]["sampling"] = _EVERY_STEP_ALIKE
    job_id = house.post("/v1/jobs", json=job)["id"]
    house.until(lambda: house.get(f"/v1/jobs/{job_id}")["step"] > 20, timeout_s=120)
    alone: list[Window] = []
    watched: list[Window] = []
    for number in range(windows):
        for is_watched in (False, True) if number % 2 == 0 else (True, False):
            found = _window(house, job_id, watchers=watchers if is_watched else 0, window_s=window_s)
            (watched if is_watched else alone).append(found)
    house.post(f"/v1/jobs/{job_id}/cancel")
    house.wait_for_end(job_id)
    return {"watchers": watchers, "windows": windows, "window_s": window_s} | _compared(alone, watched, watchers)


def _compared(alone: list[Window], watched: list[Window], watchers: int) -> dict[str, Any]:
    def median(windows: Iterable[Window], name: str) -> float:
        return statistics.median(getattr(window, name) for window in windows)

    def slower(name: str) -> list[float]:
        return [100 * (getattr(b, name) / getattr(a, name) - 1) for a, b in zip(alone, watched, strict=True)]

    by_window, events = slower("median_step_s"), sum(window.events for window in watched)
    return {
        "median_step_alone_ms": round(1000 * median(alone, "median_step_s"), 3),
        "median_step_watched_ms": round(1000 * median(watched, "median_step_s"), 3),
        "slower_percent": round(statistics.median(by_window), 2),
        "slower_percent_by_window": [round(percent, 1) for percent in by_window],
        "trainer_cpu_alone_ms": round(1000 * median(alone, "trainer_s_per_step"), 3),
        "trainer_cpu_watched_ms": round(1000 * median(watched, "trainer_s_per_step"), 3),
        "trainer_cpu_more_percent": round(statistics.median(slower("trainer_s_per_step")), 2),
        "api_percent_alone": round(100 * median(alone, "api"), 2),
        "api_percent_watched": round(100 * median(watched, "api"), 2),
        "watchers_percent": round(100 * median(watched, "watchers"), 2),
        "elsewhere_percent": round(100 * median([*alone, *watched], "elsewhere"), 1),
        "events_to_each_watcher": events,
        "events_sent": events * watchers,
    }


def _window(house: RunningService, job_id: str, *, watchers: int, window_s: float) -> Window:
    with _Watchers(house, job_id, watchers) if watchers else nullcontext() as there:
        _wait(house, 1.0)
        after = _newest(house, job_id)
        before, started = _Used.by(house, there), time.monotonic()
        _wait(house, window_s)
        used, passed = _Used.by(house, there), time.monotonic() - started
        rows = list(_events(house, job_id, after))
        events = there.leave() if there else 0
    steps = [row["event"] for row in rows if row["event"]["kind"] == "step"]
    return Window(
        steps=len(steps),
        median_step_s=statistics.median(step["tokens"] / step["tokens_per_s"] for step in steps),
        trainer_s_per_step=(used.trainer - before.trainer) / len(steps),
        api=(used.api - before.api) / passed,
        watchers=(used.watchers - before.watchers) / passed,
        elsewhere=(used.machine - used.ours - before.machine + before.ours) / passed,
        events=events,
    )


@dataclass(frozen=True, kw_only=True)
class _Used:
    """Seconds of processor time so far. The trainer is the training worker's child."""

    trainer: float
    api: float
    watchers: float
    ours: float
    machine: float

    @classmethod
    def by(cls, house: RunningService, there: _Watchers | None) -> _Used:
        every = psutil.cpu_times()
        return cls(
            trainer=sum(map(_seconds, house.descendants("training"))),
            api=_seconds(psutil.Process(house.supervisor.pids()["api"])),
            watchers=_seconds(psutil.Process(there.pid)) if there else 0.0,
            ours=_seconds(psutil.Process()) + sum(map(_seconds, psutil.Process().children(recursive=True))),
            machine=sum(every) - every.idle - every.iowait - every.guest - every.guest_nice,
        )


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _events(house: RunningService, job_id: str, after: int) -> Iterable[Mapping[str, Any]]:
    while page := house.get(f"/v1/jobs/{job_id}/events", after=after, limit=1000)["data"]:
        yield from page
        after = page[-1]["seq"]


def _newest(house: RunningService, job_id: str) -> int:
    """Number of the newest event."""
    return max((row["seq"] for row in _events(house, job_id, 0)), default=0)


def _wait(house: RunningService, seconds: float) -> None:
    """Raises when a process of the service ends meanwhile."""
    ends_at = time.monotonic() + seconds
    house.until(lambda: time.monotonic() >= ends_at, timeout_s=seconds + 60)


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
        self.pid = self._process.pid

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
