"""What the sweeper does to jobs: takes them from lost workers, finds those nobody heard of, says why one waits.

Knows leases, announcements and what workers have. Does not commit, and does not know the queue or disks.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from app.core.db import jobs
from app.core.db.doorbell import due
from app.core.db.job_changes import execute, lock
from app.core.db.tables import Job
from app.core.errors import DiskFull

_NO_WORKER = "no training worker reports itself"
_NEEDS = "needs "


def requeue_stale(session: Session, *, now: datetime, lease_s: float) -> list[str]:
    """Takes running jobs without a heartbeat for `lease_s` from their workers; returns the ids that are queued again.

    One whose owner asked to stop is cancelled or paused instead; one that lost its last worker fails with
    `worker_lost`.
    """
    oldest = now - timedelta(seconds=lease_s)
    stale = select(Job.id).where(Job.status == "running", Job.heartbeat_at < oldest).order_by(Job.id)
    requeued = []
    for job_id in session.scalars(stale).all():
        job = lock(session, job_id)
        if job.status != "running" or job.heartbeat_at is None or job.heartbeat_at >= oldest:
            continue  # it was heard of while this waited for the row
        message = "its worker stopped answering; see the worker's log"
        jobs.give_up_attempt(session, job_id=job_id, attempt=job.attempt, now=now, code="worker_lost", message=message)
        if jobs.get(session, job_id).status == "queued":
            requeued.append(job_id)
    return requeued


def unannounced(session: Session, *, now: datetime, older_than_s: float) -> list[str]:
    """Queued jobs whose message may be lost, first to run first; see `doorbell.due`. One that must wait is announced
    when its time has come."""
    query = select(Job.id, Job.queued_at, Job.announced_at, Job.not_before).where(
        Job.status == "queued", or_(Job.not_before.is_(None), Job.not_before <= now)
    )
    return [
        row.id
        for row in session.execute(query.order_by(Job.priority.desc(), Job.id))
        if (row.not_before is not None and (row.announced_at is None or row.announced_at < row.not_before))
        or due(row.queued_at, row.announced_at, now=now, older_than_s=older_than_s)
    ]


def mark_announced(session: Session, *, job_id: str, now: datetime) -> None:
    execute(session, update(Job).where(Job.id == job_id).values(announced_at=now))


def note_waiting(session: Session, *, largest_bytes: int | None) -> None:
    """Writes down why queued jobs wait for more than their turn. `largest_bytes`: the memory of the largest training
    worker that reports itself, None when none does."""
    none_there = Job.waiting_reason == _NO_WORKER
    if largest_bytes is None:
        nobody = update(Job).where(Job.status == "queued", Job.waiting_reason.is_(None))
        execute(session, nobody.values(waiting_reason=_NO_WORKER))
        return
    too_large = Job.memory_bytes > largest_bytes
    outdated = or_(none_there, Job.waiting_reason.startswith(_NEEDS))
    fits = or_(Job.memory_bytes.is_(None), Job.memory_bytes <= largest_bytes)
    execute(session, update(Job).where(Job.status == "queued", outdated, fits).values(waiting_reason=None))
    for job_id, needed, told in session.execute(
        select(Job.id, Job.memory_bytes, Job.waiting_reason).where(Job.status == "queued", too_large)
    ).all():
        reason = f"{_NEEDS}{_gib(needed)}, the largest worker has {_gib(largest_bytes)}"
        if told != reason:
            execute(session, update(Job).where(Job.id == job_id, Job.status == "queued").values(waiting_reason=reason))


def waiting_for_space(session: Session) -> list[tuple[str, int]]:
    """Jobs that were paused because a disk was full, oldest first, and how many free bytes they wait for."""
    query = select(Job.id, Job.disk_needed_bytes).where(Job.status == "paused", Job.error_code == DiskFull.code)
    return [(job_id, needed or 0) for job_id, needed in session.execute(query.order_by(Job.id))]


def _gib(num_bytes: int | None) -> str:
    return f"{(num_bytes or 0) / 2**30:.3g} GiB"
