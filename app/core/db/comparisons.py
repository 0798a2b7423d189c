"""Queries on what comparing workers do: the only place where a comparison's status changes.

Knows the transitions `queued -> running -> succeeded | failed | cancelled` (and back to queued when a lease runs out),
each one conditional UPDATE, fenced by attempt like a job's. Does not commit, and does not know the queue or shapes
(`comparison_view`); votes, divergences and batches have modules of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import SystemRandom
from typing import Any, Literal

from sqlalchemy import ColumnElement, func, or_, select, update
from sqlalchemy.orm import Session, aliased

from app.core.compare_schemas import Answer, ComparisonIn
from app.core.db.doorbell import due
from app.core.db.rows import get_row, newest_first
from app.core.db.tables import Comparison
from app.core.errors import AttemptLost, Conflict, InvalidRequest, NotFound
from app.core.ids import new_id
from app.core.model_ids import checkpoint_id

Origin = Literal["page", "chat", "batch", "divergence"]
TERMINAL: frozenset[str] = frozenset({"succeeded", "failed", "cancelled"})
BATCH_RANK = 1  # behind everything that somebody is waiting for


@dataclass(frozen=True, kw_only=True)
class ComparisonClaim:
    """What a worker needs: `request` is a ComparisonIn as stored (of a divergence a DivergenceIn)."""

    comparison_id: str
    attempt: int
    origin: Origin
    parent_id: str | None
    request: Mapping[str, Any]
    history: Mapping[str, Any]
    result: Mapping[str, Any]


def create(session: Session, *, request: ComparisonIn, now: datetime, origin: Origin = "page") -> Comparison:
    """A queued comparison. A blind one gets its models in an order that nobody is told.

    Raises NotFound for an unknown `previous_id`, Conflict where that one cannot be gone on from.
    """
    if request.blind:
        shuffled = SystemRandom().sample(list(request.model_ids), len(request.model_ids))
        request = request.model_copy(update={"model_ids": shuffled})
    comparison = new_row(origin=origin, request=request.model_dump(mode="json"), now=now)
    comparison.history = _history(session, request)
    comparison.hidden = request.blind
    session.add(comparison)
    session.flush()
    return comparison


def new_row(*, origin: Origin, request: Mapping[str, Any], now: datetime, rank: int = 0) -> Comparison:
    """A queued row, not yet in a session."""
    return Comparison(
        id=new_id("div" if origin == "divergence" else "cmp"),
        origin=origin,
        rank=rank,
        status="queued",
        request=request,
        history={},
        answers=[],
        token_ids={},
        result={},
        hidden=False,
        cancel_requested=False,
        attempt=0,
        created_at=now,
        queued_at=now,
    )


def _history(session: Session, request: ComparisonIn) -> dict[str, list[dict[str, str]]]:
    """By model: what came before, with the model's own answers."""
    if request.previous_id is None:
        return {}
    previous = get(session, request.previous_id)
    if previous.status not in TERMINAL or is_hidden(previous):
        raise Conflict(f"{previous.id} has not ended or awaits its vote; go on from it afterwards")
    said = {answer["model_id"]: answer["text"] for answer in previous.answers}
    missing = [i for i, model_id in enumerate(request.model_ids) if model_id not in said]
    if missing:
        raise InvalidRequest(f"this model has no answer in {previous.id}", f"model_ids.{missing[0]}")
    messages = list(previous.request["messages"])
    return {
        model_id: [*previous.history.get(model_id, ()), *messages, {"role": "assistant", "content": said[model_id]}]
        for model_id in request.model_ids
    }


def get(session: Session, comparison_id: str) -> Comparison:
    """The comparison as the database has it now. Raises NotFound."""
    found = get_row(session, Comparison, comparison_id, what="comparison")
    if found.origin == "divergence":
        raise NotFound(f"no comparison {comparison_id}")
    return found


def is_hidden(comparison: Comparison) -> bool:
    """Blind and still to be voted on. One that failed or was stopped never will be, so it is shown."""
    return comparison.hidden and comparison.status not in ("failed", "cancelled")


def list_page(session: Session, *, limit: int, after: str | None) -> tuple[Sequence[Comparison], bool]:
    """What people asked on the page or by POST /v1/comparisons, newest first."""
    return newest_first(session, Comparison, Comparison.origin == "page", limit=limit, after=after)


def claim_next(session: Session, *, worker: str, now: datetime) -> ComparisonClaim | None:
    """Makes the first queued row this worker's, or None if there is none."""
    order = (Comparison.rank, Comparison.created_at, Comparison.id)
    first = select(Comparison.id).where(Comparison.status == "queued").order_by(*order).limit(1)
    while (comparison_id := session.scalar(first.with_for_update(skip_locked=True))) is not None:
        mine = (Comparison.id == comparison_id, Comparison.status == "queued")
        values = {"status": "running", "attempt": Comparison.attempt + 1, "worker": worker, "heartbeat_at": now}
        if _update(session, *mine, **values):
            claimed = get_row(session, Comparison, comparison_id, what="comparison")
            return ComparisonClaim(
                comparison_id=claimed.id,
                attempt=claimed.attempt,
                origin=claimed.origin,  # type: ignore[arg-type]
                parent_id=claimed.parent_id,
                request=claimed.request,
                history=claimed.history,
                result=claimed.result,
            )
    return None


def heartbeat(session: Session, *, comparison_id: str, attempt: int, now: datetime) -> bool:
    """Says that the attempt is alive; True when somebody asked to stop. AttemptLost if it is not the running one."""
    return _beat(session, comparison_id, attempt, heartbeat_at=now)


def progress(session: Session, *, comparison_id: str, attempt: int, now: datetime, answers: Sequence[Answer]) -> bool:
    """`heartbeat`, with the answers as far as they are written."""
    partial = [answer.model_dump(mode="json") for answer in answers]
    return _beat(session, comparison_id, attempt, heartbeat_at=now, answers=partial)


def wants_stop(session: Session, *, comparison_id: str, attempt: int) -> bool:
    """Whether somebody asked to stop: a read alone. True also when the attempt is not the running one any more."""
    query = select(Comparison.cancel_requested).where(*_running(comparison_id, attempt))
    return session.scalar(query) in (None, True)


def _beat(session: Session, comparison_id: str, attempt: int, **values: Any) -> bool:
    if not _update(session, *_running(comparison_id, attempt), **values):
        raise AttemptLost(f"attempt {attempt} of {comparison_id} is not the running one")
    return bool(session.scalar(select(Comparison.cancel_requested).where(Comparison.id == comparison_id)))


def request_cancel(session: Session, *, comparison_id: str, now: datetime) -> Comparison:
    """A queued one is cancelled at once, a running one is asked to stop and keeps what is written.
    Conflict when it has ended."""
    this = Comparison.id == comparison_id
    queued = _update(session, this, Comparison.status == "queued", status="cancelled", finished_at=now)
    if not queued and not _update(session, this, Comparison.status == "running", cancel_requested=True):
        raise Conflict(f"{comparison_id} is {get(session, comparison_id).status}; only a waiting or running one stops")
    return get(session, comparison_id)


def finish(
    session: Session,
    *,
    comparison_id: str,
    attempt: int,
    now: datetime,
    status: Literal["succeeded", "failed", "cancelled"] | None = None,
    answers: Sequence[Answer] | None = None,
    token_ids: Mapping[str, Sequence[int]] | None = None,
    result: Mapping[str, Any] | None = None,
    code: str | None = None,
    message: str | None = None,
) -> None:
    """Ends the running attempt: failed when there is a `code`, else `status` (succeeded). What is None stays as it
    was: a failure keeps what was written before it. AttemptLost if the attempt is not running."""
    values: dict[str, Any] = {
        "status": status or ("failed" if code else "succeeded"),
        "error_code": code,
        "error_message": message,
        "finished_at": now,
    }
    if answers is not None:
        values["answers"] = [answer.model_dump(mode="json") for answer in answers]
    if token_ids is not None:
        values["token_ids"] = {model_id: list(ids) for model_id, ids in token_ids.items()}
    if result is not None:
        values["result"] = dict(result)
    if not _update(session, *_running(comparison_id, attempt), **values):
        raise AttemptLost(f"attempt {attempt} of {comparison_id} is not the running one")


def requeue_stale(session: Session, *, now: datetime, lease_s: float, max_attempts: int = 3) -> list[str]:
    """Takes running rows without a heartbeat for `lease_s` from their workers; the ids that are queued again.
    One that somebody asked to stop is cancelled; one that lost `max_attempts` workers fails with `worker_lost`."""
    is_stale = Comparison.heartbeat_at < now - timedelta(seconds=lease_s)
    requeued = []
    for stale in session.scalars(select(Comparison).where(Comparison.status == "running", is_stale)).all():
        same = (*_running(stale.id, stale.attempt), Comparison.heartbeat_at == stale.heartbeat_at)
        if stale.cancel_requested:
            _update(session, *same, status="cancelled", finished_at=now)
        elif stale.attempt >= max_attempts:
            message = f"{stale.attempt} workers in turn stopped answering; see their logs"
            _update(session, *same, status="failed", error_code="worker_lost", error_message=message, finished_at=now)
        elif _update(session, *same, status="queued", worker=None, queued_at=now, announced_at=None, answers=[]):
            requeued.append(stale.id)
    return requeued


def unannounced(session: Session, *, now: datetime, older_than_s: float) -> list[str]:
    """Queued rows whose message may be lost, first to run first, and one that waits for its judge; see `doorbell.due`.
    Of a batch the first row alone: a worker that is awake goes on until nothing waits."""
    earlier = aliased(Comparison)
    first_row = select(func.min(earlier.row)).where(
        earlier.parent_id == Comparison.parent_id, earlier.status == "queued"
    )
    speaks = or_(Comparison.origin != "batch", Comparison.row == first_row.scalar_subquery())
    order = (Comparison.rank, Comparison.created_at, Comparison.id)
    query = select(Comparison.id, Comparison.queued_at, Comparison.announced_at).order_by(*order)
    waiting = session.execute(query.where(Comparison.status == "queued", speaks)).all()
    unjudged = (Comparison.judge_status == "waiting", Comparison.status == "succeeded")
    rows = [*waiting, *session.execute(query.where(*unjudged).limit(1))]
    return [row.id for row in rows if due(row.queued_at, row.announced_at, now=now, older_than_s=older_than_s)]


def mark_announced(session: Session, *, comparison_id: str, now: datetime) -> None:
    _update(session, Comparison.id == comparison_id, announced_at=now)


def uses_model(session: Session, model_id: str) -> str | None:
    """The id of a waiting or running row that needs the model, if there is one."""
    return _open_row(session, lambda asked: asked == model_id)


def uses_checkpoints(session: Session, job_id: str) -> str | None:
    """The id of a waiting or running row that needs a checkpoint of the job, if there is one."""

    def is_of_job(asked: str) -> bool:
        checkpoint = checkpoint_id(asked)
        return checkpoint is not None and checkpoint.job_id == job_id

    return _open_row(session, is_of_job)


def _open_row(session: Session, needs: Callable[[str], bool]) -> str | None:
    open_rows = select(Comparison).where(Comparison.status.in_(("queued", "running"))).order_by(Comparison.id)
    for row in session.scalars(open_rows):
        asked = (*row.request.get("model_ids", ()), *(row.request.get(k) for k in ("of", "teacher_id", "student_id")))
        if any(needs(model_id) for model_id in asked if model_id):
            return row.parent_id if row.origin == "batch" else row.id
    return None


def _running(comparison_id: str, attempt: int) -> tuple[ColumnElement[bool], ...]:
    return Comparison.id == comparison_id, Comparison.attempt == attempt, Comparison.status == "running"


def _update(session: Session, *conditions: ColumnElement[bool], **values: Any) -> bool:
    """One conditional UPDATE; False when no row met the conditions (any more)."""
    statement = update(Comparison).where(*conditions).values(**values).returning(Comparison.id)
    # The database decides; objects in the session are re-read by `get`.
    return session.execute(statement, execution_options={"synchronize_session": False}).first() is not None
