"""The service as real processes: API and workers on free ports, with short intervals.

Knows how to start and find them. Uses what `stillhouse up` uses, so that a test sees the same processes.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from app.core.settings import ServiceSettings
from app.service import children, service
from app.supervisor import MIN_UPTIME_S, Supervisor
from tests.waiting import until

ENDED = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True, kw_only=True)
class RunningService:
    http: httpx.Client
    supervisor: Supervisor
    settings: ServiceSettings

    def until(self, condition: Callable[[], object], *, timeout_s: float = 180.0) -> None:
        """Waits; fails as soon as a process of the service ends."""
        until(condition, timeout_s=timeout_s, tick=lambda: self.supervisor.tick(0.05))

    def get(self, path: str, **params: Any) -> Any:
        return self.http.get(path, params=params).raise_for_status().json()

    def post(self, path: str, **request: Any) -> Any:
        return self.http.post(path, **request).raise_for_status().json()

    def upload(self, rows: Path) -> str:
        with rows.open("rb") as file:
            return self.post("/v1/datasets", files={"file": file}, data={"name": "test"})["id"]

    def wait_for_end(self, job_id: str, *, timeout_s: float = 240.0) -> Any:
        """The job as it is once it ended."""
        self.until(lambda: self.get(f"/v1/jobs/{job_id}")["status"] in ENDED, timeout_s=timeout_s)
        return self.get(f"/v1/jobs/{job_id}")

    def descendants(self, name: str) -> Sequence[psutil.Process]:
        """The processes that the child called `name` started."""
        return psutil.Process(self.supervisor.pids()[name]).children(recursive=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def running_service(
    home: Path,
    *,
    without: Sequence[str] = (),
    database_url: str = "",
    broker_url: str = "",
    training_workers: int = 1,
    may_be_killed: bool = False,
) -> Iterator[RunningService]:
    """The processes of `stillhouse up` but those in `without`; empty URLs mean the embedded default. A process that
    ends early fails the test, unless the test kills processes itself."""
    environment = {
        "STILLHOUSE_HOME": str(home),
        "STILLHOUSE_API_PORT": str(free_port()),
        "STILLHOUSE_UI_PORT": str(free_port()),
        "STILLHOUSE_DATABASE_URL": database_url,
        "STILLHOUSE_BROKER_URL": broker_url,
        "STILLHOUSE_HEARTBEAT_S": "0.3",
        "STILLHOUSE_LEASE_S": "6",
        "STILLHOUSE_SWEEP_S": "0.5",
        "OMP_NUM_THREADS": "1",
        "STILLHOUSE_GPUS": ",".join(map(str, range(training_workers))) if training_workers > 1 else "",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        settings = ServiceSettings()
        wanted = [child for child in children(settings) if child.name not in without]
        with (
            service(settings, processes=wanted, min_uptime_s=0 if may_be_killed else MIN_UPTIME_S) as supervisor,
            httpx.Client(base_url=settings.resolved_api_url, timeout=120.0, trust_env=False) as http,
        ):
            yield RunningService(http=http, supervisor=supervisor, settings=settings)
