"""The real API over a seeded database, in this process, for the page's tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvicorn

from app.core.db.session import make_engine, make_sessions
from app.core.job_config import DistillConfig
from app.core.queue import RecordingQueue
from app.core.settings import ServiceSettings
from app.core.storage import ArtifactStore
from app.deps import Services, utc_now
from app.doorbell import Doorbell
from app.main import create_app
from tests.running_service import free_port
from tests.ui.seed import Seeded, seed
from tests.waiting import until
from ui.client import StillhouseClient, make_http
from ui.config_schema import ConfigSchema


@dataclass(frozen=True)
class SeededService:
    url: str
    ids: Seeded


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeededService]:
    """An API that answers with jobs in every status. No worker runs: nothing in it changes by itself."""
    home = tmp_path_factory.mktemp("home")
    ids = seed(home)
    with serving(home) as url:
        yield SeededService(url, ids)


@contextmanager
def serving(home: Path) -> Iterator[str]:
    """The API's URL, while it serves the database and artifacts below `home`."""
    settings = ServiceSettings(home=home)
    engine = make_engine(settings.resolved_database_url)
    sessions, queue = make_sessions(engine), RecordingQueue()
    services = Services(
        engine=engine,
        sessions=sessions,
        queue=queue,
        doorbell=Doorbell(queue=queue, sessions=sessions, clock=utc_now),
        store=ArtifactStore(settings.resolved_storage_url),
        max_upload_bytes=2**20,
    )
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(create_app(services=services), port=port, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def api(seeded: SeededService) -> StillhouseClient:
    return StillhouseClient(make_http(seeded.url))


@pytest.fixture
def nobody() -> StillhouseClient:
    """A client of an API that is not there."""
    return StillhouseClient(make_http(f"http://127.0.0.1:{free_port()}"))


@pytest.fixture(scope="session")
def schema() -> ConfigSchema:
    return ConfigSchema(DistillConfig.model_json_schema())
