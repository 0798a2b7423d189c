"""Tells the database that this worker process is there, idle or not, until it ends.

Knows a background thread and what is worth saying of a worker. Does not know what the worker does: jobs and comparisons
name their worker themselves.
"""

from __future__ import annotations

import os
import platform
import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime

import structlog
from sqlalchemy.orm import Session, sessionmaker

from app.core.db import workers
from app.core.db.workers import WorkerReport
from worker.device import find_device, installed_version

log = structlog.stdlib.get_logger(__name__)

_PACKAGES = ("stillhouse", "torch", "transformers", "celery")


class Presence:
    """`start` reports this process as the worker `name` every `heartbeat_s` seconds, until `stop` takes it off the
    list. A database that is away is tried again; the work never waits for any of it."""

    def __init__(
        self,
        *,
        sessions: sessionmaker[Session],
        name: str,
        queue: str,
        heartbeat_s: float,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._sessions = sessions
        self._name = name
        self._queue = queue
        self._heartbeat_s = heartbeat_s
        self._clock = clock
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="presence", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        try:
            with self._sessions.begin() as session:
                workers.forget(session, name=self._name, pid=os.getpid())
        except Exception as error:  # drivers raise what they like; without this the row is lost, and removed later
            log.warning("not taken off the list of workers", error=repr(error))

    def _run(self) -> None:
        said = self._report()
        while True:
            try:
                with self._sessions.begin() as session:
                    workers.report(session, said, now=self._clock())
            except Exception as error:  # whatever it is, the next report may arrive
                log.warning("could not report to the list of workers, trying again", error=repr(error))
            if self._stopping.wait(self._heartbeat_s):
                return

    def _report(self) -> WorkerReport:
        device = find_device(os.environ)
        found = {package: installed_version(package) for package in _PACKAGES}
        return WorkerReport(
            name=self._name,
            queue=self._queue,
            host=socket.gethostname(),
            pid=os.getpid(),
            device=device.name,
            memory_bytes=device.memory_bytes,
            versions={"python": platform.python_version()} | {name: v for name, v in found.items() if v is not None},
            started_at=self._clock(),
        )
