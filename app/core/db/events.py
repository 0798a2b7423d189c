"""Progress events and the metrics in them.

Knows how events are numbered, fenced by attempt and paged. Does not know job statuses (who changes those calls `insert`
for the status events) or how curves are kept (`curves.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from app.core.db import curves
from app.core.db.tables import EventRow, Job
from app.core.errors import AttemptLost
from app.core.events import CheckpointSaved, Evaluated, Event, StepDone, is_training_event
from app.core.schemas import EventOut


def append(
    session: Session,
    *,
    job_id: str,
    attempt: int,
    events: Sequence[Event],
    now: datetime,
    after: int | None = None,
) -> None:
    """Stores what attempt `attempt` reports. The counter's UPDATE is the fence: AttemptLost if another attempt runs,
    or none. Steps also move the job's progress; what steps and evaluations measured becomes curves.

    `after` is the number of the event before the first of `events`. Those of them that are stored already are left
    out: whoever was cut off while it committed tries again, and cannot know whether it has to.
    """
    if after is not None:
        last = select(Job.last_seq).where(Job.id == job_id, Job.attempt == attempt, Job.status == "running")
        events = events[max(0, (session.scalar(last.with_for_update()) or 0) - after) :]
    if not events:
        return
    counted = (
        update(Job)
        .where(Job.id == job_id, Job.attempt == attempt, Job.status == "running")
        .values(last_seq=Job.last_seq + len(events), heartbeat_at=now, **_progress(events))
        .returning(Job.last_seq)
    )
    last_seq = session.execute(counted, execution_options={"synchronize_session": False}).scalar_one_or_none()
    if last_seq is None:
        raise AttemptLost(f"attempt {attempt} of {job_id} is not the running one")
    insert(session, job_id=job_id, attempt=attempt, first_seq=last_seq - len(events) + 1, events=events, now=now)
    curves.store(session, job_id=job_id, values=_measured(events))


def _progress(events: Sequence[Event]) -> dict[str, Any]:
    """What the job's row says of its progress. A checkpoint is progress that the next attempt keeps, so failures are
    counted anew from there."""
    values: dict[str, Any] = {}
    if num_training := sum(map(is_training_event, events)):
        values["training_events"] = Job.training_events + num_training
    if steps := [event for event in events if isinstance(event, StepDone)]:
        values |= {"step": max(event.step for event in steps), "eta_s": steps[-1].eta_s}
        values["tokens"] = Job.tokens + sum(event.tokens for event in steps)
    if any(isinstance(event, CheckpointSaved) for event in events):
        values["failures"] = 0
    return values


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


def _payload(event: Event) -> dict[str, Any]:
    """JSON has no NaN or infinity (PostgreSQL refuses them), so a measure that is not finite is left out."""
    payload = event.model_dump(mode="json")
    if isinstance(event, StepDone | Evaluated):
        payload["metrics"] = _finite(event.metrics)
    return payload


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}


def _measured(events: Iterable[Event]) -> dict[tuple[int, str], float]:
    """The numbers in `events` by step and name; of a step measured twice (a periodic and a final evaluation) the
    newer one."""
    return {
        (event.step, name): value
        for event in events
        if isinstance(event, StepDone | Evaluated)
        for name, value in _finite(event.metrics).items()
    }
