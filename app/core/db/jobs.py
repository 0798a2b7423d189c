"""Jobs as rows, and a worker's hold on them: claim, heartbeat, and every way in which an attempt ends.

Knows which changes of status a worker may make. Does not commit, does not know the queue, nor what people
(`job_requests.py`) and the sweeper (`job_sweeps.py`) may change. Each change is one conditional UPDATE
(`job_changes.py`), so it holds between any number of processes.

    queued  -> running (claim)      cancelled (person)   paused (person)
    running -> succeeded, failed, cancelled (attempt)    paused (person asked, or no disk space)
               queued (handed back, or failed and worth another try, or its lease ran out)
    paused  -> queued (person, or disk space came back)  cancelled (person)
    failed, cancelled -> queued (person retries)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal, cast

from sqlalchemy import func, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.core.db import events as event_rows
from app.core.db.job_changes import TERMINAL, change, execute, lock, running
from app.core.db.rows import get_row, newest_first
from app.core.db.tables import Job
from app.core.errors import AttemptLost, Conflict
from app.core.events import StatusChanged
from app.core.ids import new_id
from app.core.job_config import DistillConfig
from app.core.schemas import JobError, JobOut, JobStatus

Stop = Literal["cancel", "pause"]
# Between the tries of a job that failed.
_FIRST_PAUSE_S = 10.0
_LONGEST_PAUSE_S = 600.0


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a worker needs to run a job. `config` is as stored: the worker validates it, so that a description that an
    older version accepted fails its own job and does not block the queue."""

    job_id: str
    attempt: int
    config: Mapping[str, Any]
    last_seq: int  # of the event that says that this attempt runs: until it ends, only its own events follow
    training_events: int  # stored by earlier attempts, since the last start from nothing
    memory_bytes: int | None  # what the run is estimated to need
    seconds_left: float | None  # until the job's time limit


def checkpoints_key(job_id: str) -> str:
    """The folder of a job's checkpoints in the artifact store, with one folder per attempt: the newest one's count."""
    return f"checkpoints/{job_id}"


def create(
    session: Session,
    *,
    name: str,
    config: DistillConfig,
    priority: int,
    now: datetime,
    idempotency_key: str | None = None,
    max_attempts: int = 3,
    max_hours: float | None = None,
    memory_bytes: int | None = None,
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
        max_attempts=max_attempts,
        max_hours=max_hours,
        memory_bytes=memory_bytes,
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
        recipe=job.config.get("recipe", ""),
        priority=job.priority,
        attempt=job.attempt,
        failures=job.failures,
        max_attempts=job.max_attempts,
        max_hours=job.max_hours,
        step=job.step,
        max_steps=job.max_steps,
        tokens=job.tokens,
        eta_s=job.eta_s if job.status == "running" else None,
        memory_bytes=job.memory_bytes,
        worker=job.worker,
        waiting_reason=job.waiting_reason if job.status == "queued" else None,
        not_before=job.not_before if job.status == "queued" else None,
        cancel_requested=job.cancel_requested,
        pause_requested=job.pause_requested,
        student_id=job.student_id,
        teacher_id=job.teacher_id,
        untrained_id=job.untrained_id,
        error=JobError(code=job.error_code, message=job.error_message or "") if job.error_code else None,
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
    )


def list_page(
    session: Session, *, status: JobStatus | None, limit: int, after: str | None, q: str | None = None
) -> tuple[Sequence[Job], bool]:
    """Newest first, at most `limit`, continuing after the job `after`; the flag says whether more follow. `q` is part
    of a name, or of an id, in any case."""
    conditions = [] if status is None else [Job.status == status]
    if q:
        conditions.append(or_(Job.name.icontains(q, autoescape=True), Job.id.icontains(q, autoescape=True)))
    return newest_first(session, Job, *conditions, limit=limit, after=after)


def count_by_status(session: Session) -> dict[str, int]:
    return dict(session.execute(select(Job.status, func.count()).group_by(Job.status)).all())


def claim_next(session: Session, *, worker: str, now: datetime, memory_bytes: int | None = None) -> Claim | None:
    """Makes the first runnable job (highest priority, then oldest) this worker's, or None if there is none.

    A job that failed a moment ago waits for its `not_before`, and one that needs more than the worker's `memory_bytes`
    waits for another worker.
    """
    runnable = [Job.status == "queued", or_(Job.not_before.is_(None), Job.not_before <= now)]
    if memory_bytes is not None:
        runnable.append(or_(Job.memory_bytes.is_(None), Job.memory_bytes <= memory_bytes))
    first = select(Job.id).where(*runnable).order_by(Job.priority.desc(), Job.id).limit(1)
    while (job_id := session.scalar(first.with_for_update(skip_locked=True))) is not None:
        changed = change(
            session,
            job_id,
            Job.status == "queued",
            now=now,
            event=StatusChanged(status="running"),
            attempt=Job.attempt + 1,
            worker=worker,
            started_at=func.coalesce(Job.started_at, now),
            attempt_started_at=now,
            heartbeat_at=now,
            not_before=None,
            waiting_reason=None,
        )
        if changed:
            return _claim_of(get(session, job_id))
    return None


def _claim_of(job: Job) -> Claim:
    return Claim(
        job_id=job.id,
        attempt=job.attempt,
        config=job.config,
        last_seq=job.last_seq,
        training_events=job.training_events,
        memory_bytes=job.memory_bytes,
        seconds_left=None if job.max_hours is None else job.max_hours * 3600 - job.used_s,
    )


def heartbeat(session: Session, *, job_id: str, attempt: int, now: datetime) -> Stop | None:
    """Says that the attempt is alive; what a person asked it to do. AttemptLost if it is not the running one."""
    statement = update(Job).where(*running(job_id, attempt)).values(heartbeat_at=now)
    asked = execute(session, statement.returning(Job.cancel_requested, Job.pause_requested)).one_or_none()
    if asked is None:
        raise _lost(job_id, attempt)
    return "cancel" if asked.cancel_requested else "pause" if asked.pause_requested else None


def finish(
    session: Session,
    *,
    job_id: str,
    attempt: int,
    status: Literal["succeeded", "failed", "cancelled", "paused", "queued"],
    now: datetime,
    code: str | None = None,
    message: str | None = None,
    student_id: str | None = None,
    **values: Any,
) -> None:
    """Ends the running attempt; `code` and `message` say why it did not succeed. AttemptLost if it is not the running
    one. A job whose owner asked to cancel it does not become paused or queued but cancelled; one that should pause
    does not become queued but paused."""
    job = lock(session, job_id)
    if (job.status, job.attempt) != ("running", attempt):
        raise _lost(job_id, attempt)
    if status in ("paused", "queued") and job.cancel_requested:
        status, code, values = "cancelled", None, {}
    elif status == "queued" and job.pause_requested:
        status, code, values = "paused", None, {}
    started_at = job.attempt_started_at or now
    values |= {
        "error_code": code,
        "error_message": message if code else None,
        "used_s": job.used_s + max(0.0, (now - started_at).total_seconds()),
        "pause_requested": False,
        "eta_s": None,
    }
    if status in TERMINAL:
        values |= {"finished_at": now, "student_id": student_id}
    elif status == "queued":
        values |= {"queued_at": now, "announced_at": None}
    event = StatusChanged(status=status, code=code, message=message)
    if not change(session, job_id, *running(job_id, attempt), now=now, event=event, **values):
        raise _lost(job_id, attempt)


def give_up_attempt(session: Session, *, job_id: str, attempt: int, now: datetime, code: str, message: str) -> None:
    """Ends the running attempt for a reason that may be gone the next time: the job is queued again, or fails once
    `max_attempts` in a row came to nothing. The second try starts at once, each later one after a longer pause."""
    job = lock(session, job_id)
    failures = job.failures + 1
    if failures >= job.max_attempts:
        times = f"{failures} attempts in a row ended like this" if failures > 1 else "the only attempt ended like this"
        finish(
            session,
            job_id=job_id,
            attempt=attempt,
            status="failed",
            now=now,
            code=code,
            message=f"{message} ({times})",
            failures=failures,
        )
        return
    pause_s = 0.0 if failures == 1 else min(_FIRST_PAUSE_S * 2 ** (failures - 2), _LONGEST_PAUSE_S)
    finish(
        session,
        job_id=job_id,
        attempt=attempt,
        status="queued",
        now=now,
        message=f"{code}: {message} (try {failures + 1} of {job.max_attempts} in {pause_s:.0f} s)",
        failures=failures,
        not_before=now + timedelta(seconds=pause_s) if pause_s else None,
        waiting_reason=f"tried again after a pause of {pause_s:.0f} s ({code})" if pause_s else None,
    )


def _lost(job_id: str, attempt: int) -> AttemptLost:
    return AttemptLost(f"attempt {attempt} of {job_id} is not the running one")
