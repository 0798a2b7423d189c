"""A ring is noted when it was heard, and never fails its caller."""

from __future__ import annotations

from sqlalchemy.orm import Session, sessionmaker

from app.core.db import jobs
from app.core.queue import RecordingQueue
from app.doorbell import Doorbell
from tests.app.conftest import Clock, make_config

Sessions = sessionmaker[Session]


def announced_at(sessions: Sessions, job_id: str) -> object:
    with sessions.begin() as session:
        return jobs.get(session, job_id).announced_at


def test_only_what_was_heard_is_noted(sessions: Sessions, queue: RecordingQueue, clock: Clock) -> None:
    with sessions.begin() as session:
        job_id = jobs.create(session, name="a", config=make_config(), priority=0, now=clock()).id
    doorbell = Doorbell(queue=queue, sessions=sessions, clock=clock)
    queue.fail = True
    doorbell.ring_training(job_id)
    assert announced_at(sessions, job_id) is None
    queue.fail = False
    doorbell.ring_training(job_id)
    assert announced_at(sessions, job_id) == clock()
    assert queue.announced == [("stillhouse.train", job_id)]
