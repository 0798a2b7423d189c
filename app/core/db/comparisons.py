"""Queries on comparisons: the only place where a comparison's status changes.

Knows the transitions `queued -> running -> succeeded | failed` (and back to queued when a lease runs out), each one
conditional UPDATE, fenced by attempt like a job's. Does not commit, and does not know the queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, cast

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.orm import Session

from app.core.db.doorbell import due
from app.core.db.rows import get_row
from app.core.db.tables import Comparison
from app.core.errors import AttemptLost
from app.core.ids import new_id
from app.core.schemas import Answer, ComparisonIn, ComparisonOut, JobError


@dataclass(frozen=True, kw_only=True)
class ComparisonClaim:
    """What a worker needs to answer: `request` is a ComparisonIn as stored."""

    comparison_id: str
    attempt: int
    request: Mapping[str, Any]


def create(session: Session, *, request: ComparisonIn, now: datetime) -> Comparison:
    comparison = Comparison(
        id=new_id("cmp"),
        status="queued",
        request=request.model_dump(mode="json"),
        answers=[],
        attempt=0,
        created_at=now,
        queued_at=now,
    )
    session.add(comparison)
    session.flush()
    return comparison


def get(session: Session, comparison_id: str) -> Comparison:
    """The comparison as the database has it now. Raises NotFound."""
    return get_row(session, Comparison, comparison_id, what="comparison")


def as_shape(comparison: Comparison) -> ComparisonOut:
    code = comparison.error_code
    return ComparisonOut(
        id=comparison.id,
        status=cast(Literal["queued", "running", "succeeded", "failed"], comparison.status),
        request=ComparisonIn.model_validate(comparison.request),
        answers=[Answer.model_validate(answer) for answer in comparison.answers],
        error=JobError(code=code, message=comparison.error_message or "") if code else None,
        created_at=comparison.created_at,
        finished_at=comparison.finished_at,
    )


def claim_next(session: Session, *, worker: str, now: datetime) -> ComparisonClaim | None:
    """Makes the oldest queued comparison this worker's, or None if there is none."""
    first = select(Comparison.id).where(Comparison.status == "queued").order_by(Comparison.id).limit(1)
    while (comparison_id := session.scalar(first.with_for_update(skip_locked=True))) is not None:
        mine = (Comparison.id == comparison_id, Comparison.status == "queued")
        values = {"status": "running", "attempt": Comparison.attempt + 1, "worker": worker, "heartbeat_at": now}
        if _update(session, *mine, **values):
            claimed = get(session, comparison_id)
            return ComparisonClaim(comparison_id=claimed.id, attempt=claimed.attempt, request=claimed.request)
    return None


def heartbeat(session: Session, *, comparison_id: str, attempt: int, now: datetime) -> None:
    """Says that the attempt is alive. AttemptLost if it is not the running one."""
    if not _update(session, *_running(comparison_id, attempt), heartbeat_at=now):
        raise AttemptLost(f"attempt {attempt} of {comparison_id} is not the running one")


def finish(
    session: Session,
    *,
    comparison_id: str,
    attempt: int,
    now: datetime,
    answers: Sequence[Answer] = (),
    code: str | None = None,
    message: str | None = None,
) -> None:
    """Ends the running attempt: failed when there is a `code`, else succeeded. AttemptLost if it is not running."""
    values = {
        "status": "failed" if code else "succeeded",
        "answers": [answer.model_dump(mode="json") for answer in answers],
        "error_code": code,
        "error_message": message,
        "finished_at": now,
    }
    if not _update(session, *_running(comparison_id, attempt), **values):
        raise AttemptLost(f"attempt {attempt} of {comparison_id} is not the running one")


def requeue_stale(session: Session, *, now: datetime, lease_s: float, max_attempts: int = 3) -> list[str]:
    """Takes running comparisons without a heartbeat for `lease_s` from their workers; the ids that are queued again.
    One that lost `max_attempts` workers fails with `worker_lost`."""
    is_stale = Comparison.heartbeat_at < now - timedelta(seconds=lease_s)
    requeued = []
    for stale in session.scalars(select(Comparison).where(Comparison.status == "running", is_stale)).all():
        same = (*_running(stale.id, stale.attempt), Comparison.heartbeat_at == stale.heartbeat_at)
        if stale.attempt >= max_attempts:
            message = f"{stale.attempt} workers in turn stopped answering; see their logs"
            _update(session, *same, status="failed", error_code="worker_lost", error_message=message, finished_at=now)
        elif _update(session, *same, status="queued", worker=None, queued_at=now, announced_at=None):
            requeued.append(stale.id)
    return requeued


def unannounced(session: Session, *, now: datetime, older_than_s: float) -> list[str]:
    """Queued comparisons whose message may be lost, oldest first; see `doorbell.due`."""
    query = select(Comparison.id, Comparison.queued_at, Comparison.announced_at).where(Comparison.status == "queued")
    rows = session.execute(query.order_by(Comparison.id))
    return [row.id for row in rows if due(row.queued_at, row.announced_at, now=now, older_than_s=older_than_s)]


def mark_announced(session: Session, *, comparison_id: str, now: datetime) -> None:
    _update(session, Comparison.id == comparison_id, announced_at=now)


def _running(comparison_id: str, attempt: int) -> tuple[ColumnElement[bool], ...]:
    return Comparison.id == comparison_id, Comparison.attempt == attempt, Comparison.status == "running"


def _update(session: Session, *conditions: ColumnElement[bool], **values: Any) -> bool:
    """One conditional UPDATE; False when no row met the conditions (any more)."""
    statement = update(Comparison).where(*conditions).values(**values).returning(Comparison.id)
    # The database decides; objects in the session are re-read by `get`.
    return session.execute(statement, execution_options={"synchronize_session": False}).first() is not None
