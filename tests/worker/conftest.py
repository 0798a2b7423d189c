"""A real database and artifact store for the worker's tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy.orm import Session, sessionmaker

from app.core.db.migrate import upgrade
from app.core.db.session import make_engine, make_sessions
from app.core.storage import ArtifactStore


@pytest.fixture
def sessions(tmp_path: Path) -> sessionmaker[Session]:
    url = f"sqlite:///{tmp_path / 'stillhouse.db'}"
    upgrade(url)
    return make_sessions(make_engine(url))


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(f"file://{tmp_path / 'artifacts'}")
