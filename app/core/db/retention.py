"""What may be forgotten: the histories of jobs, and comparisons, that ended long ago.

Knows when something is over, and removes it in pieces small enough that nobody waits for them. Does not commit, and
does not know files. Whatever is not over (queued, running, paused) is not touched, whenever it was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, and_, delete, exists, false, func, not_, select, update
from sqlalchemy.orm import Session

from app.core.db import curves
from app.core.db.job_changes import TERMINAL, execute, lock
from app.core.db.tables import Batch, Comparison, EventRow, Job
from app.core.errors import NotFound

_EVENTS_AT_ONCE = 5000
_STEPS_AT_ONCE = 500
_OPEN = ("queued", "running")


def untrimmed(session: Session, *, before: datetime, limit: int) -> Sequence[str]:
    """Jobs that ended before that time and still have their events and curves, the longest over first."""
    query = select(Job.id).where(Job.trimmed_at.is_(None), Job.finished_at < before, Job.status.in_(TERMINAL))
    return session.scalars(query.order_by(Job.finished_at).limit(limit)).all()


def trim(session: Session, *, job_id: str, before: datetime, now: datetime) -> bool:
    """Removes some of the job's events, but never its last one, which says how it ended, and of its curves. True when
    more is left; False, and nothing happens, when it did not end before that time (any more)."""
    if not is_over(session, job_id=job_id, before=before):
        return False
    of_job = (EventRow.job_id == job_id, EventRow.seq < select(Job.last_seq).where(Job.id == job_id).scalar_subquery())
    oldest = session.scalar(select(func.min(EventRow.seq)).where(*of_job))
    if oldest is not None:
        session.execute(delete(EventRow).where(*of_job, EventRow.seq < oldest + _EVENTS_AT_ONCE))
        return True
    if curves.remove_oldest(session, job_id=job_id, steps=_STEPS_AT_ONCE):
        return True
    execute(session, update(Job).where(Job.id == job_id).values(trimmed_at=now))
    return False


def is_over(session: Session, *, job_id: str, before: datetime) -> bool:
    """Whether the job ended before that time. It stays so until the transaction ends: a retry waits for it."""
    try:
        job = lock(session, job_id)
    except NotFound:
        return False
    return job.status in TERMINAL and job.finished_at is not None and job.finished_at < before


def old_comparisons(session: Session, *, before: datetime, limit: int) -> Sequence[str]:
    """Comparisons and divergences, but no rows of batches, that ended before that time, oldest first."""
    query = select(Comparison.id).where(Comparison.origin != "batch", _over(before))
    return session.scalars(query.order_by(Comparison.id).limit(limit)).all()


def remove_comparison(session: Session, *, comparison_id: str, before: datetime) -> bool:
    """Its vote stays, without words: it counts in the models' standings."""
    gone = delete(Comparison).where(Comparison.id == comparison_id, _over(before)).returning(Comparison.id)
    return session.scalar(gone, execution_options={"synchronize_session": False}) is not None


def old_batches(session: Session, *, before: datetime, limit: int) -> Sequence[str]:
    """Batches all of whose rows ended before that time, oldest first."""
    return session.scalars(select(Batch.id).where(_batch_over(before)).order_by(Batch.id).limit(limit)).all()


def remove_batch(session: Session, *, batch_id: str, before: datetime) -> bool:
    """The batch with all its rows."""
    gone = delete(Batch).where(Batch.id == batch_id, _batch_over(before)).returning(Batch.id)
    if session.scalar(gone, execution_options={"synchronize_session": False}) is None:
        return False
    session.execute(delete(Comparison).where(Comparison.parent_id == batch_id))
    return True


def _over(before: datetime) -> ColumnElement[bool]:
    return and_(Comparison.status.not_in(_OPEN), Comparison.finished_at < before)


def _batch_over(before: datetime) -> ColumnElement[bool]:
    a_row_that_is_not = exists().where(Comparison.parent_id == Batch.id, not_(func.coalesce(_over(before), false())))
    return and_(Batch.created_at < before, ~a_row_that_is_not)
