"""Queries on workers: who reported itself, when last, and what it does now.

Knows rows of the `workers` table, and that a job or comparison names the worker that runs it. Does not know how a
worker finds out about its device (`worker/presence.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from app.core.db.tables import Comparison, Job, Worker
from app.core.schemas import WorkerOut


@dataclass(frozen=True, kw_only=True)
class WorkerReport:
    """What a worker process says about itself. `memory_bytes`: of its device, or of the machine when it computes on
    the processor. `versions`: of Python and of the packages that its results depend on."""

    name: str
    queue: str
    host: str
    pid: int
    device: str
    memory_bytes: int
    versions: Mapping[str, Any]
    started_at: datetime


def report(session: Session, worker: WorkerReport, *, now: datetime) -> None:
    """Registers the worker, or says that it is still there. One statement for both: a row that was removed meanwhile
    comes back, and a new process takes over the row of an old one of its name."""
    dialect = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
    values = asdict(worker) | {"heartbeat_at": now}
    statement = dialect.insert(Worker).values(values)
    fresh = {column: statement.excluded[column] for column in values if column != "name"}
    session.execute(statement.on_conflict_do_update(index_elements=["name"], set_=fresh))


def forget(session: Session, *, name: str, pid: int) -> None:
    """Removes the row of a process that ends, unless another process of that name has it by now."""
    session.execute(delete(Worker).where(Worker.name == name, Worker.pid == pid))


def seen(session: Session, *, now: datetime, lease_s: float, queue: str | None = None) -> Sequence[Worker]:
    """The workers (of `queue`) that reported within the last `lease_s` seconds, by name."""
    query = select(Worker).where(Worker.heartbeat_at >= now - timedelta(seconds=lease_s)).order_by(Worker.name)
    return session.scalars(query if queue is None else query.where(Worker.queue == queue)).all()


def list_all(session: Session, *, now: datetime, lease_s: float) -> list[WorkerOut]:
    """Every worker by name, with what it runs now; one that did not report for `lease_s` seconds is `lost`."""
    jobs = dict(session.execute(select(Job.worker, Job.id).where(Job.status == "running")).all())
    running = select(Comparison.worker, Comparison.id).where(Comparison.status == "running")
    comparisons = dict(session.execute(running).all())
    oldest = now - timedelta(seconds=lease_s)
    return [
        _as_shape(
            row, job_id=jobs.get(row.name), comparison_id=comparisons.get(row.name), is_lost=row.heartbeat_at < oldest
        )
        for row in session.scalars(select(Worker).order_by(Worker.name))
    ]


def remove_lost(session: Session, *, now: datetime, older_than_s: float) -> list[str]:
    """Removes the rows of workers that have not reported for so long; their names."""
    gone = delete(Worker).where(Worker.heartbeat_at < now - timedelta(seconds=older_than_s)).returning(Worker.name)
    return list(session.scalars(gone, execution_options={"synchronize_session": False}))


def _as_shape(row: Worker, *, job_id: str | None, comparison_id: str | None, is_lost: bool) -> WorkerOut:
    return WorkerOut(
        name=row.name,
        queue=row.queue,
        status="lost" if is_lost else "busy" if job_id or comparison_id else "idle",
        job_id=job_id,
        comparison_id=comparison_id,
        device=row.device,
        memory_bytes=row.memory_bytes,
        host=row.host,
        pid=row.pid,
        versions=row.versions,
        started_at=row.started_at,
        heartbeat_at=row.heartbeat_at,
    )
