"""A worker is on the list while it lives, whatever the database does meanwhile."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from app.core.db import workers
from app.core.schemas import WorkerOut
from tests.waiting import until
from worker.presence import Presence

Sessions = sessionmaker[Session]


def listed(sessions: Sessions) -> list[WorkerOut]:
    with sessions.begin() as session:
        return workers.list_all(session, now=datetime.now(UTC), lease_s=60)


def make_presence(sessions: Sessions) -> Presence:
    return Presence(sessions=sessions, name="training@here", queue="training", heartbeat_s=0.02)


def test_a_worker_says_what_it_is_and_leaves(sessions: Sessions) -> None:
    presence = make_presence(sessions)
    presence.start()
    until(lambda: listed(sessions))
    (first,) = listed(sessions)
    until(lambda: listed(sessions)[0].heartbeat_at > first.heartbeat_at)
    assert (first.name, first.queue, first.pid, first.status) == ("training@here", "training", os.getpid(), "idle")
    assert first.memory_bytes > 2**28
    assert {"python", "stillhouse", "torch", "transformers", "celery"} <= first.versions.keys()
    presence.stop()
    assert listed(sessions) == []


def test_a_database_that_is_away_is_tried_again(sessions: Sessions) -> None:
    with sessions.begin() as session:
        session.execute(text("ALTER TABLE workers RENAME TO hidden"))
    presence = make_presence(sessions)
    presence.start()
    with sessions.begin() as session:
        session.execute(text("ALTER TABLE hidden RENAME TO workers"))
    until(lambda: listed(sessions))
    with sessions.begin() as session:
        session.execute(text("DELETE FROM workers"))  # as the sweeper would, had this worker been silent for a day
    until(lambda: listed(sessions))
    with sessions.begin() as session:
        session.execute(text("ALTER TABLE workers RENAME TO hidden"))
    presence.stop()
