"""Fixtures that every test folder shares: tiny real models and rows, made once per session, and outside services.

A service that is not there skips its tests, with the reason, unless STILLHOUSE_REQUIRE_SERVICES=1 or
STILLHOUSE_REQUIRE_BROWSER=1 says that it has to be (as the CI does): then they fail.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from app.core.db.migrate import upgrade
from app.core.db.session import make_engine
from tests.services import absent, fresh_database, redis_database
from tests.tiny_models import make_tiny_model, write_rows


@pytest.fixture(scope="session", autouse=True)
def signals_are_heard() -> None:
    """A shell starts what it puts in the background with Ctrl-C ignored, and `nohup` what it starts with a closed
    terminal ignored; all that the tests start would inherit that."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, usual)


@pytest.fixture(scope="session")
def tiny_teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random four-layer Llama and its tokenizer."""
    return make_tiny_model(tmp_path_factory.mktemp("teacher"), layers=4, seed=1)


@pytest.fixture(scope="session")
def tiny_student(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random two-layer Llama that shares the teacher's tokenizer."""
    return make_tiny_model(tmp_path_factory.mktemp("student"), layers=2, seed=2)


@pytest.fixture(scope="session")
def tiny_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A JSONL file of 24 canonical rows with responses."""
    return write_rows(tmp_path_factory.mktemp("rows") / "rows.jsonl")


@pytest.fixture
def postgres_url() -> Iterator[str]:
    """URL of an empty database of the test's own, on the server of STILLHOUSE_TEST_DATABASE_URL."""
    with fresh_database() as url:
        yield url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.service)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty, migrated database on either back end."""
    sqlite = f"sqlite:///{tmp_path / 'test.db'}"
    url: str = sqlite if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    upgrade(url)
    return url


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = make_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture(scope="session")
def redis_url() -> str:
    """URL of a Redis database of this test process's own."""
    return redis_database()


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of the system's Chromium."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        absent("no Chromium on the PATH", required_by="STILLHOUSE_REQUIRE_BROWSER")
    return found
