"""The service under attack: its real processes on one back end, with a disk, a database and a broker of the run's own.

Knows how to reach and to find everything. Does not know faults, nor what jobs are for. Starts the service as the tests
do, so that both see the same processes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from app.core.db.session import make_engine, make_sessions
from app.core.queue import CeleryQueue, make_celery
from benchmarks.chaos.disk import Disk, disk
from benchmarks.chaos.servers import Postgres, Redis, servers
from tests.running_service import RunningService, running_service

BACK_ENDS = ("sqlite + files", "postgresql + redis")
WORKERS = ("training-0", "training-1")
CHILD = "worker.training_child"
_AWAY_AT_MOST_S = 180.0


class OutOfTime(Exception):
    """The run's time is used up and something still does not happen."""


@dataclass(frozen=True, kw_only=True)
class House:
    """`sessions` and `queue` are the run's own way to the database and the broker, beside the service's."""

    service: RunningService
    disk: Disk
    storage: Path
    engine: Engine
    sessions: sessionmaker[Session]
    queue: CeleryQueue
    postgres: Postgres | None
    redis: Redis | None

    def tick(self) -> None:
        """A moment passes; what was killed is started again."""
        self.service.supervisor.tick(0.05)

    def try_get(self, path: str, **params: Any) -> Any:
        """The answer, or None while the API does not give one."""
        answer = self.try_send("GET", path, params=params)
        return None if answer is None else answer.raise_for_status().json()

    def try_send(self, method: str, path: str, **request: Any) -> httpx.Response | None:
        """None while the API or its database is away; whether the request was served is not known then."""
        try:
            answer = self.service.http.request(method, path, **request)
        except httpx.TransportError:
            return None
        return None if answer.status_code >= 500 else answer

    def get(self, path: str, **params: Any) -> Any:
        """The answer, once there is one. Raises OutOfTime when the API stays away."""
        gives_up_at = time.monotonic() + _AWAY_AT_MOST_S
        while (answer := self.try_get(path, **params)) is None:
            if time.monotonic() > gives_up_at:
                raise OutOfTime(f"the API does not answer to {path}")
            self.tick()
        return answer

    def process(self, name: str) -> psutil.Process:
        return psutil.Process(self.service.supervisor.pids()[name])

    def trainings(self, worker: str = "") -> list[psutil.Process]:
        """The training processes, or the one of the training worker `worker`."""
        found = []
        for name in WORKERS:
            if worker in ("", name):
                found += [process for process in self._children(name) if CHILD in _command(process)]
        return found

    def _children(self, name: str) -> list[psutil.Process]:
        try:
            return self.process(name).children(recursive=True)
        except psutil.NoSuchProcess:
            return []


@contextmanager
def open_house(back_end: str, folder: Path) -> Iterator[House]:
    """An empty service with two training workers. Raises ProgramMissing where the back end's servers are not there."""
    with ExitStack() as stack:
        postgres, redis = stack.enter_context(servers()) if back_end == BACK_ENDS[1] else (None, None)
        storage = folder / "artifacts"
        own_disk = stack.enter_context(disk(storage, lambda: house.trainings()))
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        environment.setenv("STILLHOUSE_STORAGE_URL", storage.as_uri())
        service = stack.enter_context(
            running_service(
                folder / "home",
                database_url=postgres.url if postgres else "",
                broker_url=redis.url if redis else "",
                training_workers=len(WORKERS),
                may_be_killed=True,
            )
        )
        engine = make_engine(service.settings.resolved_database_url)
        stack.callback(engine.dispose)
        house = House(
            service=service,
            disk=own_disk,
            storage=storage,
            engine=engine,
            sessions=make_sessions(engine),
            queue=CeleryQueue(make_celery(service.settings)),
            postgres=postgres,
            redis=redis,
        )
        yield house


def processes_of(home: Path) -> list[psutil.Process]:
    """Every living process that was started for the state folder `home`, but this one."""
    found = []
    for process in psutil.process_iter(["environ", "status"]):
        environment: Mapping[str, str] = process.info["environ"] or {}
        is_alive = process.info["status"] != psutil.STATUS_ZOMBIE
        if is_alive and environment.get("STILLHOUSE_HOME") == str(home) and process.pid != psutil.Process().pid:
            found.append(process)
    return found


def utc_now() -> datetime:
    return datetime.now(UTC)


def _command(process: psutil.Process) -> Sequence[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return ()
