"""What people do to jobs: cancel, pause, resume, retry, delete.

Knows which status allows what; everything else is a Conflict that names the status. Does not commit, and does not know
files: the caller removes those that a clean retry or a deleted job leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from app.core.db import comparisons, curves, jobs
from app.core.db.job_changes import TERMINAL, change, execute, lock
from app.core.db.tables import EventRow, Job, Model
from app.core.errors import Conflict
from app.core.events import StatusChanged


def request_cancel(session: Session, *, job_id: str, now: datetime) -> Job:
    """A queued or paused job is cancelled at once, a running one is asked to stop at its next step. Conflict when it
    ended."""
    job = lock(session, job_id)
    if job.status == "running":
        _ask(session, job_id, cancel_requested=True)
    elif job.status in ("queued", "paused"):
        message = f"cancelled while it was {job.status}"
        stopped = StatusChanged(status="cancelled", message=message)
        values = {"cancel_requested": True, "finished_at": now, "error_code": None, "error_message": None}
        change(session, job_id, now=now, event=stopped, **values)
    else:
        raise _forbidden(job, "only a queued, running or paused job can be cancelled")
    return jobs.get(session, job_id)


def request_pause(session: Session, *, job_id: str, now: datetime) -> Job:
    """A queued job is paused at once, a running one is asked to keep a checkpoint and stop at its next step. Conflict
    for any other, and for one that is being cancelled."""
    job = lock(session, job_id)
    if job.status == "running" and job.cancel_requested:
        raise Conflict(f"{job_id} is running and about to be cancelled; retry it when it has ended")
    if job.status == "running":
        _ask(session, job_id, pause_requested=True)
    elif job.status == "queued":
        change(session, job_id, now=now, event=StatusChanged(status="paused", message="paused before it was taken"))
    else:
        raise _forbidden(job, "only a queued or running job can be paused")
    return jobs.get(session, job_id)


def resume(session: Session, *, job_id: str, now: datetime) -> Job:
    """Queues a paused job again. A running one whose pause has not happened yet is asked no more. Conflict for any
    other."""
    job = lock(session, job_id)
    if job.status == "running" and job.pause_requested:
        _ask(session, job_id, pause_requested=False)
    elif job.status == "paused":
        change(session, job_id, now=now, event=StatusChanged(status="queued", message="resumed"), **queued(now))
    else:
        raise _forbidden(job, "only a paused job can be resumed")
    return jobs.get(session, job_id)


def retry(session: Session, *, job_id: str, from_checkpoint: bool, now: datetime) -> Job:
    """Queues a failed or cancelled job again, to go on from its last checkpoint or to start from nothing. Then its
    curves are removed (its events stay), and the caller removes its checkpoints before it commits. Conflict for any
    other status, and for a start from nothing while somebody is asking one of its checkpoints."""
    job = lock(session, job_id)
    if job.status not in ("failed", "cancelled"):
        raise _forbidden(job, "only a failed or cancelled job can be retried")
    values = queued(now) | {"cancel_requested": False, "failures": 0, "used_s": 0.0, "finished_at": None}
    where = "from its last checkpoint"
    if not from_checkpoint:
        _require_unused_checkpoints(session, job_id)
        where = "from nothing"
        values |= {"training_events": 0, "step": 0, "tokens": 0, "started_at": None}
        curves.remove(session, job_id=job_id)
    change(session, job_id, now=now, event=StatusChanged(status="queued", message=f"retried {where}"), **values)
    return jobs.get(session, job_id)


def queued(now: datetime) -> dict[str, object]:
    """What a job forgets when it is queued again."""
    return {
        "queued_at": now,
        "announced_at": None,
        "not_before": None,
        "waiting_reason": None,
        "disk_needed_bytes": None,
        "trimmed_at": None,
        "pause_requested": False,
        "error_code": None,
        "error_message": None,
    }


def remove(session: Session, *, job_id: str) -> Sequence[str]:
    """Removes a job that does not run, with its events, curves and models. Returns the keys of the models' folders in
    the artifact store, which the caller removes after the commit. Conflict while it is queued or running, or somebody
    is asking one of its models or checkpoints."""
    job = lock(session, job_id)
    if job.status not in TERMINAL | {"paused"}:
        raise _forbidden(job, "cancel it first, then delete it")
    models = session.scalars(select(Model).where(Model.job_id == job_id)).all()
    for model in models:
        if (user := comparisons.uses_model(session, model.id)) is not None:
            raise Conflict(f"its {model.kind} is in use by {user}; wait for its end, or cancel it")
    _require_unused_checkpoints(session, job_id)
    curves.remove(session, job_id=job_id)
    session.execute(delete(EventRow).where(EventRow.job_id == job_id))
    session.execute(delete(Job).where(Job.id == job_id))
    session.execute(delete(Model).where(Model.job_id == job_id))
    return [model.source for model in models if model.kind != "untrained"]


def _require_unused_checkpoints(session: Session, job_id: str) -> None:
    if (user := comparisons.uses_checkpoints(session, job_id)) is not None:
        raise Conflict(f"a checkpoint of {job_id} is in use by {user}; wait for its end, or cancel it")


def _ask(session: Session, job_id: str, **wish: bool) -> None:
    execute(session, update(Job).where(Job.id == job_id).values(**wish))


def _forbidden(job: Job, what: str) -> Conflict:
    return Conflict(f"{job.id} is {job.status}; {what}")
