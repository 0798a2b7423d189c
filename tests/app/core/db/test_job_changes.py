"""A change of status happens whole or not at all: status, values and event, under its conditions."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from app.core.db import job_changes
from app.core.db.tables import EventRow, Job
from app.core.errors import NotFound
from app.core.events import StatusChanged
from tests.app.core.db.desk import Desk

SUCCEEDED = StatusChanged(status="succeeded")


def test_a_change_whose_conditions_hold_writes_all_of_it(desk: Desk) -> None:
    job_id = desk.create()
    desk.claim()
    before = desk.read(job_id)
    with desk.sessions.begin() as session:
        fence = job_changes.running(job_id, 1)
        assert job_changes.change(session, job_id, *fence, now=desk.clock(), event=SUCCEEDED, step=7)
    after = desk.read(job_id)
    assert (after.status, after.step, after.last_seq) == ("succeeded", 7, before.last_seq + 1)
    with desk.sessions.begin() as session:
        row = session.get_one(EventRow, (job_id, after.last_seq))
        assert (row.attempt, row.payload["kind"], row.payload["status"]) == (1, "status", "succeeded")


@pytest.mark.parametrize("attempt", [0, 2])
def test_another_attempt_changes_nothing(desk: Desk, attempt: int) -> None:
    job_id = desk.create()
    desk.claim()
    before = desk.read(job_id)
    with desk.sessions.begin() as session:
        fence = job_changes.running(job_id, attempt)
        assert not job_changes.change(session, job_id, *fence, now=desk.clock(), event=SUCCEEDED, step=7)
    after = desk.read(job_id)
    assert (after.status, after.step, after.last_seq) == ("running", before.step, before.last_seq)
    with desk.sessions.begin() as session:
        assert session.scalars(select(EventRow.seq).where(EventRow.seq > before.last_seq)).all() == []


def test_a_lock_sees_what_the_session_read_too_early(desk: Desk) -> None:
    job_id = desk.create()
    with desk.sessions.begin() as session:
        job = session.get_one(Job, job_id)
        job_changes.change(session, job_id, now=desk.clock(), event=StatusChanged(status="cancelled"))
        assert job.status == "queued"  # the object in the session does not know yet
        assert job_changes.lock(session, job_id).status == "cancelled"


def test_a_job_that_is_not_there_cannot_be_locked(desk: Desk) -> None:
    with desk.sessions.begin() as session, pytest.raises(NotFound, match="job_none"):
        job_changes.lock(session, "job_none")
