"""The jobs table: the only place where a job's status changes.

Knows the transitions and that each appends its StatusChanged event in the same transaction. Does not commit, and
does not know the queue. Every change is one conditional UPDATE, so it holds between any number of processes.

    queued -> running -> succeeded | failed | cancelled
    queued -> cancelled          running -> queued (lease ran out)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal, cast

from sqlalchemy import ColumnElement, Update, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.core.db import curves
from app.core.db import events as event_rows
from app.core.db.doorbell import due
from app.core.db.rows import get_row, newest_first
from app.core.db.tables import Job
from app.core.errors import AttemptLost, Conflict
from app.core.events import StatusChanged
from app.core.ids import new_id
from app.core.job_config import DistillConfig
from app.core.schemas import JobError, JobOut, JobStatus

TERMINAL: frozenset[str] = frozenset({"succeeded", "failed", "cancelled"})


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a worker needs to run a job. `config` is as stored: the worker validates it, so that a description that an
    older version accepted fails its own job and does not block the queue."""

    job_id: str
    attempt: int
    config: Mapping[str, Any]


def create(
    session: Session,
    *,
    name: str,
    config: DistillConfig,
    priority: int,
    now: datetime,
    idempotency_key: str | None = None,
) -> Job:
    """A new queued job. With a key that was used before: the earlier job (its `created_at` is then not `now`), or
    Conflict if that one was described differently."""
    find = partial(find_replay, session, key=idempotency_key, name=name, config=config, priority=priority)
    if (earlier := find()) is not None:
        return earlier
    job = Job(
        id=new_id("job"),
        name=name,
        status="queued",
        config=config.model_dump(mode="json"),
        priority=priority,
        idempotency_key=idempotency_key,
        max_steps=config.training.max_steps,
        created_at=now,
        queued_at=now,
        last_seq=1,
        attempt=0,
    )
    try:
        with session.begin_nested():
            session.add(job)
    except IntegrityError:  # another request with the same key was faster
        if (earlier := find()) is None:
            raise
        return earlier
    created = StatusChanged(status="queued")
    event_rows.insert(session, job_id=job.id, attempt=0, first_seq=1, events=[created], now=now)
    return job


def find_replay(session: Session, *, key: str | None, name: str, config: DistillConfig, priority: int) -> Job | None:
    """The job that an earlier request with the same Idempotency-Key made. Conflict if it was described differently."""
    earlier = None if key is None else session.scalar(select(Job).where(Job.idempotency_key == key))
    if earlier is None:
        return None
    if (earlier.name, earlier.priority, earlier.config) != (name, priority, config.model_dump(mode="json")):
        raise Conflict("this Idempotency-Key was used with another job description; use a new key")
    return earlier


def get(session: Session, job_id: str) -> Job:
    """The job as the database has it now. Raises NotFound."""
    return get_row(session, Job, job_id, what="job")


def as_shape(job: Job) -> JobOut:
    return JobOut(
        id=job.id,
        name=job.name,
        status=cast(JobStatus, job.status),
        config=job.config,
        priority=job.priority,
        attempt=job.attempt,
        step=job.step,
        max_steps=job.max_steps,
        cancel_requested=job.cancel_requested,
        student_id=job.student_id,
        teacher_id=job.teacher_id,
        untrained_id=job.untrained_id,
        error=JobError(code=job.error_code, message=job.error_message or "") if job.error_code else None,
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
    )


def list_page(
    session: Session, *, status: JobStatus | None, limit: int, after: str | None
) -> tuple[Sequence[Job], bool]:
    """Newest first, at most `limit`, continuing after the job `after`; the flag says whether more follow."""
    conditions = [] if status is None else [Job.status == status]
    return newest_first(session, Job, *conditions, limit=limit, after=after)


def count_by_status(session: Session) -> dict[str, int]:
    return dict(session.execute(select(Job.status, func.count()).group_by(Job.status)).all())


def claim_next(session: Session, *, worker: str, now: datetime) -> Claim | None:
    """Makes the first queued job (highest priority, then oldest) this worker's, or None if there is none.

    A new attempt starts from the beginning, so what a lost one measured is dropped; its events stay.
    """
    first = select(Job.id).where(Job.status == "queued").order_by(Job.priority.desc(), Job.id).limit(1)
    while (job_id := session.scalar(first.with_for_update(skip_locked=True))) is not None:
        change = _change(
            session,
            job_id,
            Job.status == "queued",
            now=now,
            event=StatusChanged(status="running"),
            attempt=Job.attempt + 1,
            worker=worker,
            started_at=func.coalesce(Job.started_at, now),
            heartbeat_at=now,
            step=0,
        )
        if change is not None:
            curves.remove(session, job_id=job_id)
            job = get(session, job_id)
            return Claim(job_id=job.id, attempt=job.attempt, config=job.config)
    return None


def heartbeat(session: Session, *, job_id: str, attempt: int, now: datetime) -> bool:
    """Says that the attempt is alive; True when the user asked to cancel. AttemptLost if it is not the running one."""
    statement = update(Job).where(*_running(job_id, attempt)).values(heartbeat_at=now).returning(Job.cancel_requested)
    cancel_requested = _execute(session, statement).scalar_one_or_none()
    if cancel_requested is None:
        raise AttemptLost(f"attempt {attempt} of {job_id} is not the running one")
    return cancel_requested


def request_cancel(session: Session, *, job_id: str, now: datetime) -> Job:
    """A queued job is cancelled at once, a running one is asked to stop at its next step. Conflict when it ended."""
    stopped = StatusChanged(status="cancelled", message="cancelled before it started")
    if _change(session, job_id, Job.status == "queued", now=now, event=stopped, finished_at=now, cancel_requested=True):
        return get(session, job_id)
    asked = update(Job).where(Job.id == job_id, Job.status == "running").values(cancel_requested=True)
    if _execute(session, asked.returning(Job.id)).scalar_one_or_none() is None:
        raise Conflict(f"{job_id} is {get(session, job_id).status}; only a queued or running job can be cancelled")
    return get(session, job_id)


def finish(
    session: Session,
    *,
    job_id: str,
    attempt: int,
    status: Literal["succeeded", "failed", "cancelled"],
    now: datetime,
    code: str | None = None,
    message: str | None = None,
    student_id: str | None = None,
) -> None:
    """Ends the running attempt; `code` and `message` say why it failed. AttemptLost if it is not the running one."""
    changed = _change(
        session,
        job_id,
        *_running(job_id, attempt),
        now=now,
        event=StatusChanged(status=status, code=code, message=message),
        finished_at=now,
        error_code=code,
        error_message=message,
        student_id=student_id,
    )
    if changed is None:
        raise AttemptLost(f"attempt {attempt} of {job_id} is not the running one")


def requeue_stale(session: Session, *, now: datetime, lease_s: float, max_attempts: int = 3) -> list[str]:
    """Takes running jobs without a heartbeat for `lease_s` from their workers; returns the ids that are queued again.

    One whose user asked to stop is cancelled instead; one that lost `max_attempts` workers fails with `worker_lost`.
    """
    stale = select(Job).where(Job.status == "running", Job.heartbeat_at < now - timedelta(seconds=lease_s))
    requeued = []
    for job in session.scalars(stale).all():
        same = (*_running(job.id, job.attempt), Job.heartbeat_at == job.heartbeat_at)
        if job.cancel_requested:
            stopped = StatusChanged(status="cancelled", message="its worker stopped answering")
            _change(session, job.id, *same, now=now, event=stopped, finished_at=now)
        elif job.attempt >= max_attempts:
            message = f"{job.attempt} workers in turn stopped answering while running this job; see their logs"
            lost = StatusChanged(status="failed", code="worker_lost", message=message)
            ended = {"finished_at": now, "error_code": lost.code, "error_message": message}
            _change(session, job.id, *same, now=now, event=lost, **ended)
        else:
            again = StatusChanged(status="queued", message="its worker stopped answering")
            if _change(session, job.id, *same, now=now, event=again, worker=None, queued_at=now, announced_at=None):
                requeued.append(job.id)
    return requeued


def unannounced(session: Session, *, now: datetime, older_than_s: float) -> list[str]:
    """Queued jobs whose message may be lost, first to run first; see `doorbell.due`."""
    query = select(Job.id, Job.queued_at, Job.announced_at).where(Job.status == "queued")
    rows = session.execute(query.order_by(Job.priority.desc(), Job.id))
    return [row.id for row in rows if due(row.queued_at, row.announced_at, now=now, older_than_s=older_than_s)]


def mark_announced(session: Session, *, job_id: str, now: datetime) -> None:
    _execute(session, update(Job).where(Job.id == job_id).values(announced_at=now))


def _running(job_id: str, attempt: int) -> tuple[ColumnElement[bool], ...]:
    return Job.id == job_id, Job.attempt == attempt, Job.status == "running"


def _change(
    session: Session, job_id: str, *conditions: ColumnElement[bool], now: datetime, event: StatusChanged, **values: Any
) -> int | None:
    """Sets `event.status` and `values` if `conditions` still hold, and appends the event; the event's seq, or None."""
    statement = update(Job).where(Job.id == job_id, *conditions)
    statement = statement.values(status=event.status, last_seq=Job.last_seq + 1, **values)
    changed = _execute(session, statement.returning(Job.last_seq, Job.attempt)).one_or_none()
    if changed is None:
        return None
    seq, attempt = changed
    event_rows.insert(session, job_id=job_id, attempt=attempt, first_seq=seq, events=[event], now=now)
    return seq


def _execute(session: Session, statement: Update) -> Any:
    # The UPDATEs are decided by the database; objects in the session are re-read by `get`.
    return session.execute(statement, execution_options={"synchronize_session": False})
