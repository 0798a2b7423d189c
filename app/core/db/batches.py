"""Batches: a data set asked row by row. Each row is a comparison, so claims, heartbeats and restarts are theirs.

Knows progress (counted, never stored), the rows' scores and who may judge a row. Does not know how rows are answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

from sqlalchemy import and_, func, or_, select, update
from sqlalchemy.orm import Session

from app.core.compare_schemas import (
    Answer,
    BatchIn,
    BatchOut,
    BatchRow,
    BatchStatus,
    ComparisonIn,
    ComparisonStatus,
    RowScore,
    SamplingIn,
    Verdict,
)
from app.core.db import comparisons
from app.core.db.comparison_view import error_of
from app.core.db.rows import get_row, newest_first
from app.core.db.tables import Batch, Comparison
from app.core.errors import Conflict
from app.core.ids import new_id

_OPTIONS = {"synchronize_session": False}
JUDGE_LEASE_S = 600.0  # after so long without a verdict a row is another judge's


@dataclass(frozen=True, kw_only=True)
class DataRow:
    """One row of the data set: its prompt as messages, and its own response."""

    messages: Sequence[Mapping[str, str]]
    reference: str | None


def create(session: Session, *, request: BatchIn, rows: Sequence[DataRow], now: datetime) -> tuple[Batch, str]:
    """The batch and the id of its first row, all of whose rows are queued behind what people wait for."""
    batch = Batch(
        id=new_id("bat"),
        request=request.model_dump(mode="json"),
        rows=len(rows),
        judge=request.judge,
        cancel_requested=False,
        created_at=now,
    )
    session.add(batch)
    sampling = request.model_dump(include=set(SamplingIn.model_fields))
    asked = [_row(batch.id, number, row, request.model_ids, sampling, now) for number, row in enumerate(rows, start=1)]
    for one in asked:
        one.judge_status = "waiting" if request.judge else None
    session.add_all(asked)
    session.flush()
    return batch, asked[0].id


def _row(
    batch_id: str, number: int, row: DataRow, model_ids: Sequence[str], sampling: Mapping[str, Any], now: datetime
) -> Comparison:
    question = ComparisonIn.model_validate({**sampling, "model_ids": list(model_ids), "messages": list(row.messages)})
    asked = comparisons.new_row(
        origin="batch", request=question.model_dump(mode="json"), now=now, rank=comparisons.BATCH_RANK
    )
    asked.parent_id, asked.row, asked.result = batch_id, number, {"reference": row.reference}
    return asked


def get(session: Session, batch_id: str) -> Batch:
    """Raises NotFound."""
    return get_row(session, Batch, batch_id, what="batch")


def list_page(session: Session, *, limit: int, after: str | None) -> tuple[Sequence[Batch], bool]:
    return newest_first(session, Batch, limit=limit, after=after)


def cancel(session: Session, *, batch_id: str, now: datetime) -> Batch:
    """Waiting rows are cancelled at once, a running one stops; what is answered stays. Conflict when it has ended."""
    batch = get(session, batch_id)
    if (shape := as_shape(session, batch)).status in ("succeeded", "cancelled"):
        raise Conflict(f"{batch_id} is {shape.status}; only a waiting or running batch can be cancelled")
    mine = Comparison.parent_id == batch_id
    waiting = update(Comparison).where(mine, Comparison.status == "queued")
    session.execute(waiting.values(status="cancelled", finished_at=now), execution_options=_OPTIONS)
    unjudged = update(Comparison).where(mine, Comparison.judge_status == "waiting")
    session.execute(unjudged.values(judge_status=None), execution_options=_OPTIONS)
    running = update(Comparison).where(mine, Comparison.status == "running")
    session.execute(running.values(cancel_requested=True), execution_options=_OPTIONS)
    batch.cancel_requested = True
    session.flush()
    return batch


def as_shape(session: Session, batch: Batch) -> BatchOut:
    query = select(Comparison.status, func.count()).where(Comparison.parent_id == batch.id).group_by(Comparison.status)
    counts: dict[str, int] = dict(session.execute(query).all())
    is_judged = (Comparison.parent_id == batch.id, Comparison.judge_status == "done")
    judged = session.scalar(select(func.count()).select_from(Comparison).where(*is_judged)) or 0
    return BatchOut(
        id=batch.id,
        status=_status(batch, counts, judged),
        request=BatchIn.model_validate(batch.request),
        rows=batch.rows,
        done=sum(counts.get(status, 0) for status in comparisons.TERMINAL),
        failed=counts.get("failed", 0),
        judged=judged,
        created_at=batch.created_at,
    )


def _status(batch: Batch, counts: Mapping[str, int], judged: int) -> BatchStatus:
    if counts.get("running") or (counts.get("queued") and len(counts) > 1):
        return "running"
    if counts.get("queued"):
        return "queued"
    if batch.cancel_requested:
        return "cancelled"
    return "judging" if batch.judge and judged < counts.get("succeeded", 0) else "succeeded"


def rows(session: Session, batch_id: str) -> list[BatchRow]:
    """All rows in the data set's order."""
    query = select(Comparison).where(Comparison.parent_id == batch_id).order_by(Comparison.row)
    return [_as_row(row) for row in session.scalars(query)]


def _as_row(row: Comparison) -> BatchRow:
    return BatchRow(
        row=row.row or 0,
        comparison_id=row.id,
        status=cast(ComparisonStatus, row.status),
        prompt=row.request["messages"][-1]["content"],
        reference=row.result.get("reference"),
        answers=[Answer.model_validate(answer) for answer in row.answers],
        scores=[RowScore.model_validate(score) for score in row.result.get("scores", ())],
        verdicts=[Verdict.model_validate(verdict) for verdict in row.result.get("verdicts", ())],
        error=error_of(row),
    )


# --- judging ------------------------------------------------------------------------------------------------


def claim_unjudged(session: Session, *, now: datetime) -> Comparison | None:
    """An answered row that no judge has, taken for `JUDGE_LEASE_S`; None if there is none."""
    lapsed = Comparison.judged_at < now - timedelta(seconds=JUDGE_LEASE_S)
    free = or_(Comparison.judge_status == "waiting", and_(Comparison.judge_status == "taken", lapsed))
    first = select(Comparison.id).where(free, Comparison.status == "succeeded").order_by(Comparison.id).limit(1)
    while (row_id := session.scalar(first)) is not None:
        taken = update(Comparison).where(Comparison.id == row_id, free).values(judge_status="taken", judged_at=now)
        if session.execute(taken.returning(Comparison.id), execution_options=_OPTIONS).first() is not None:
            return comparisons.get(session, row_id)
    return None


def store_verdicts(session: Session, *, comparison_id: str, verdicts: Sequence[Verdict]) -> None:
    row = comparisons.get(session, comparison_id)
    row.result = {**row.result, "verdicts": [verdict.model_dump(mode="json") for verdict in verdicts]}
    row.judge_status = "done"
    session.flush()


def has_unjudged(session: Session) -> bool:
    """Whether an answered row waits for a judge."""
    waits = (Comparison.judge_status == "waiting", Comparison.status == "succeeded")
    return session.scalar(select(Comparison.id).where(*waits).limit(1)) is not None
