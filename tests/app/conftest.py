"""The API on a database (`tests/conftest.py`: on either back end), queue and store of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from app.core.db.session import make_sessions
from app.core.job_config import DistillConfig
from app.core.queue import RecordingQueue
from app.core.storage import ArtifactStore
from app.deps import Services
from app.doorbell import Doorbell
from app.main import create_app

T = TypeVar("T")


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> datetime:
        self.now += timedelta(seconds=seconds)
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(engine: Engine) -> sessionmaker[Session]:
    return make_sessions(engine)


@pytest.fixture
def queue() -> RecordingQueue:
    return RecordingQueue()


@pytest.fixture
def services(
    engine: Engine, sessions: sessionmaker[Session], queue: RecordingQueue, clock: Clock, tmp_path: Path
) -> Services:
    return Services(
        engine=engine,
        sessions=sessions,
        queue=queue,
        doorbell=Doorbell(queue=queue, sessions=sessions, clock=clock),
        store=ArtifactStore(f"file://{tmp_path / 'artifacts'}"),
        clock=clock,
        max_upload_bytes=2**20,
        stream_poll_s=0.02,
        stream_ping_s=0.1,
    )


@pytest.fixture
def client(services: Services) -> Iterator[TestClient]:
    with TestClient(create_app(services=services), raise_server_exceptions=False) as client:
        yield client


def make_config(**sections: Any) -> DistillConfig:
    """A description that needs no files; sections replace its own."""
    raw: dict[str, Any] = {
        "teacher": {"model": "some/teacher"},
        "student": {"kind": "from_teacher", "layers": 2},
        "data": {"kind": "dataset", "dataset_id": "ds_1"},
    }
    return DistillConfig.model_validate(raw | sections)


def at_once(call: Callable[[], T], times: int) -> list[T]:
    """What `call` returns when so many threads call it at the same moment; the first exception is raised here."""
    start = threading.Barrier(times)

    def run() -> T:
        start.wait()
        return call()

    with ThreadPoolExecutor(times) as pool:
        return [future.result() for future in [pool.submit(run) for _ in range(times)]]
