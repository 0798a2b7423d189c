"""A worker is healthy while it reports itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy.orm import Session, sessionmaker

from app.core.db import workers
from app.core.settings import ServiceSettings
from worker.alive import is_alive

NOW = datetime.now(UTC)


def test_alive_within_the_lease(sessions: sessionmaker[Session], tmp_path: Path) -> None:
    settings = ServiceSettings(database_url=f"sqlite:///{tmp_path / 'stillhouse.db'}", lease_s=60)
    report = workers.WorkerReport(
        name="training@h",
        queue="training",
        host="h",
        pid=1,
        device="cpu",
        memory_bytes=1,
        versions={},
        started_at=NOW,
    )
    assert not is_alive(settings, "training@h", now=NOW)
    with sessions.begin() as session:
        workers.report(session, report, now=NOW)
    assert is_alive(settings, "training@h", now=NOW + timedelta(seconds=59))
    assert not is_alive(settings, "training@h", now=NOW + timedelta(seconds=61))
    assert not is_alive(settings, "comparing@h", now=NOW)
