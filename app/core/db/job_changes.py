"""How a job's status changes: one conditional UPDATE and its StatusChanged event, in one transaction.

Knows the fence (status and attempt) and the numbering of events. Does not know which change is allowed: `jobs.py`
(workers), `job_requests.py` (people) and `job_sweeps.py` (the sweeper) do, and no other module changes a status.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Update, select, update
from sqlalchemy.orm import Session

from app.core.db import events as event_rows
from app.core.db.tables import Job
from app.core.errors import NotFound
from app.core.events import StatusChanged

TERMINAL: frozenset[str] = frozenset({"succeeded", "failed", "cancelled"})


def lock(session: Session, job_id: str) -> Job:
    """The job as it is now, and as it stays until this transaction ends. Raises NotFound.

    SQLite needs no row lock: every transaction of ours holds the write lock from its start.
    """
    query = select(Job).where(Job.id == job_id).with_for_update()
    job = session.scalar(query.execution_options(populate_existing=True))
    if job is None:
        raise NotFound(f"no job {job_id}")
    return job


def running(job_id: str, attempt: int) -> tuple[ColumnElement[bool], ...]:
    return Job.id == job_id, Job.attempt == attempt, Job.status == "running"


def change(
    session: Session, job_id: str, *conditions: ColumnElement[bool], now: datetime, event: StatusChanged, **values: Any
) -> bool:
    """Sets `event.status` and `values` if `conditions` still hold, and appends the event; whether they did."""
    statement = update(Job).where(Job.id == job_id, *conditions)
    statement = statement.values(status=event.status, last_seq=Job.last_seq + 1, **values)
    changed = execute(session, statement.returning(Job.last_seq, Job.attempt)).one_or_none()
    if changed is None:
        return False
    seq, attempt = changed
    event_rows.insert(session, job_id=job_id, attempt=attempt, first_seq=seq, events=[event], now=now)
    return True


def execute(session: Session, statement: Update) -> Any:
    # The UPDATEs are decided by the database; objects in the session are re-read by `lock` and `jobs.get`.
    return session.execute(statement, execution_options={"synchronize_session": False})
