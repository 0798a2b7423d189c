"""Progress events and the metrics in them.

Knows how events are numbered, fenced by attempt, paged and thinned out for curves. Does not know job statuses:
`jobs.py` changes those and calls `insert` for its own status events.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from app.core.db.tables import EventRow, Job, Metric
from app.core.errors import AttemptLost
from app.core.events import Evaluated, Event, StepDone
from app.core.schemas import EventOut, Series


def append(session: Session, *, job_id: str, attempt: int, events: Sequence[Event], now: datetime) -> None:
    """Stores what attempt `attempt` reports. The counter's UPDATE is the fence: AttemptLost if another attempt runs,
    or none. Steps also move `job.step`; metrics of steps and evaluations go to `metrics`."""
    if not events:
        return
    counted = (
        update(Job)
        .where(Job.id == job_id, Job.attempt == attempt, Job.status == "running")
        .values(last_seq=Job.last_seq + len(events), heartbeat_at=now)
        .returning(Job.last_seq)
    )
    steps = [event.step for event in events if isinstance(event, StepDone)]
    if steps:
        counted = counted.values(step=max(steps))
    last_seq = session.execute(counted, execution_options={"synchronize_session": False}).scalar_one_or_none()
    if last_seq is None:
        raise AttemptLost(f"attempt {attempt} of {job_id} is not the running one")
    insert(session, job_id=job_id, attempt=attempt, first_seq=last_seq - len(events) + 1, events=events, now=now)
    _store_metrics(session, job_id, events)


def insert(
    session: Session, *, job_id: str, attempt: int, first_seq: int, events: Sequence[Event], now: datetime
) -> None:
    """Adds rows under numbers that the caller has already counted on the job's row."""
    session.add_all(
        EventRow(job_id=job_id, seq=first_seq + i, attempt=attempt, created_at=now, payload=_payload(event))
        for i, event in enumerate(events)
    )
    session.flush()


def page(session: Session, *, job_id: str, after: int, limit: int) -> tuple[Sequence[EventRow], bool]:
    """Events with seq > `after`, oldest first, at most `limit`; the flag says whether more follow."""
    query = select(EventRow).where(EventRow.job_id == job_id, EventRow.seq > after).order_by(EventRow.seq)
    rows = session.scalars(query.limit(limit + 1)).all()
    return rows[:limit], len(rows) > limit


def as_shape(row: EventRow) -> EventOut:
    return EventOut(seq=row.seq, attempt=row.attempt, created_at=row.created_at, event=row.payload)


def series(session: Session, *, job_id: str, names: Sequence[str] | None, max_points: int) -> list[Series]:
    """One curve per metric name (all names when `names` is None), in order of name, each of at most `max_points`."""
    query = select(Metric.name, Metric.step, Metric.value).where(Metric.job_id == job_id)
    if names is not None:
        query = query.where(Metric.name.in_(names))
    curves: dict[str, list[tuple[int, float]]] = {}
    for name, step, value in session.execute(query.order_by(Metric.name, Metric.step)):
        curves.setdefault(name, []).append((step, value))
    return [Series(name=name, points=down_sample(points, max_points)) for name, points in curves.items()]


def down_sample(points: Sequence[tuple[int, float]], max_points: int) -> list[tuple[int, float]]:
    """At most `max_points` (>= 4) of `points` (sorted by step): the first, the last, and of every stretch between
    them its lowest and its highest, so that a spike is never averaged away."""
    if len(points) <= max_points:
        return list(points)
    inner, num_stretches = points[1:-1], (max_points - 2) // 2
    kept = [points[0]]
    for i in range(num_stretches):
        stretch = inner[i * len(inner) // num_stretches : (i + 1) * len(inner) // num_stretches]
        extremes = {min(stretch, key=lambda point: point[1]), max(stretch, key=lambda point: point[1])}
        kept.extend(sorted(extremes))
    return [*kept, points[-1]]


def _payload(event: Event) -> dict[str, Any]:
    """JSON has no NaN or infinity (PostgreSQL refuses them), so a measure that is not finite is left out."""
    payload = event.model_dump(mode="json")
    if isinstance(event, StepDone | Evaluated):
        payload["metrics"] = _finite(event.metrics)
    return payload


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}


def _store_metrics(session: Session, job_id: str, events: Iterable[Event]) -> None:
    """A step measured twice (a periodic and a final evaluation) keeps the newer value."""
    values = {
        (name, event.step): value
        for event in events
        if isinstance(event, StepDone | Evaluated)
        for name, value in _finite(event.metrics).items()
    }
    if not values:
        return
    rows = [{"job_id": job_id, "name": name, "step": step, "value": value} for (name, step), value in values.items()]
    dialect = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
    statement = dialect.insert(Metric)
    keys = ["job_id", "name", "step"]
    session.execute(
        statement.on_conflict_do_update(index_elements=keys, set_={"value": statement.excluded.value}), rows
    )
