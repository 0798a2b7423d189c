"""Batches: rows behind what people wait for, progress counted from them, cancelled, and gone on with after a loss."""

from __future__ import annotations

import pytest
from sqlalchemy.orm import Session, sessionmaker

from app.core.compare_schemas import BatchIn, ChatMessage, ComparisonIn
from app.core.db import batches, comparisons
from app.core.errors import Conflict, NotFound
from tests.app.conftest import Clock

Sessions = sessionmaker[Session]


@pytest.fixture
def batch_id(sessions: Sessions, clock: Clock) -> str:
    request = BatchIn(dataset_id="ds_1", model_ids=["mdl_1"], temperature=0.5, template="plain")
    rows = [
        batches.DataRow(messages=[{"role": "user", "content": f"row {i}"}], reference=f"answer {i}") for i in (1, 2, 3)
    ]
    with sessions.begin() as session:
        batch, first = batches.create(session, request=request, rows=rows, now=clock())
        assert comparisons.get(session, first).row == 1
        return batch.id


def run_next(sessions: Sessions, clock: Clock) -> comparisons.ComparisonClaim:
    with sessions.begin() as session:
        claim = comparisons.claim_next(session, worker="w", now=clock())
        assert claim is not None
        comparisons.finish(session, comparison_id=claim.comparison_id, attempt=claim.attempt, now=clock(), answers=[])
        return claim


def shape(sessions: Sessions, batch_id: str) -> tuple[str, int]:
    with sessions.begin() as session:
        found = batches.as_shape(session, batches.get(session, batch_id))
        return found.status, found.done


def test_rows_are_asked_in_their_order_with_the_batchs_settings(
    sessions: Sessions, clock: Clock, batch_id: str
) -> None:
    assert shape(sessions, batch_id) == ("queued", 0)
    claims = [run_next(sessions, clock) for _ in range(3)]
    assert [claim.request["messages"][0]["content"] for claim in claims] == ["row 1", "row 2", "row 3"]
    assert {(claim.request["temperature"], claim.request["template"]) for claim in claims} == {(0.5, "plain")}
    assert [claim.result["reference"] for claim in claims] == ["answer 1", "answer 2", "answer 3"]
    assert shape(sessions, batch_id) == ("succeeded", 3)


def test_what_people_wait_for_comes_first(sessions: Sessions, clock: Clock, batch_id: str) -> None:
    run_next(sessions, clock)
    request = ComparisonIn(model_ids=["mdl_1"], messages=[ChatMessage(role="user", content="hi")])
    with sessions.begin() as session:
        asked = comparisons.create(session, request=request, now=clock.advance(5)).id
    assert run_next(sessions, clock).comparison_id == asked
    assert run_next(sessions, clock).request["messages"][0]["content"] == "row 2"


def test_a_lost_worker_costs_one_row(sessions: Sessions, clock: Clock, batch_id: str) -> None:
    """The first unanswered row is asked again; what is answered stays answered."""
    run_next(sessions, clock)
    with sessions.begin() as session:
        lost = comparisons.claim_next(session, worker="dies", now=clock())
        assert lost is not None
    with sessions.begin() as session:
        assert comparisons.requeue_stale(session, now=clock.advance(100), lease_s=60) == [lost.comparison_id]
    assert run_next(sessions, clock).comparison_id == lost.comparison_id
    run_next(sessions, clock)
    assert shape(sessions, batch_id) == ("succeeded", 3)


def test_one_message_wakes_for_a_batch_however_many_rows_wait(sessions: Sessions, clock: Clock, batch_id: str) -> None:
    run_next(sessions, clock)
    with sessions.begin() as session:
        (announced,) = comparisons.unannounced(session, now=clock.advance(60), older_than_s=10)
        assert comparisons.get(session, announced).row == 2


def test_a_cancelled_batch_keeps_what_is_answered(sessions: Sessions, clock: Clock, batch_id: str) -> None:
    run_next(sessions, clock)
    with sessions.begin() as session:
        running = comparisons.claim_next(session, worker="w", now=clock())
        assert running is not None
        batches.cancel(session, batch_id=batch_id, now=clock())
        which = {"comparison_id": running.comparison_id, "attempt": running.attempt}
        assert comparisons.wants_stop(session, **which)
        assert comparisons.heartbeat(session, **which, now=clock())
        comparisons.finish(session, **which, now=clock(), status="cancelled")
        assert comparisons.claim_next(session, worker="w", now=clock()) is None
        assert [row.status for row in batches.rows(session, batch_id)] == ["succeeded", "cancelled", "cancelled"]
    assert shape(sessions, batch_id) == ("cancelled", 3)
    with pytest.raises(Conflict), sessions.begin() as session:
        batches.cancel(session, batch_id=batch_id, now=clock())


def test_unknown_batches(sessions: Sessions) -> None:
    with pytest.raises(NotFound), sessions.begin() as session:
        batches.get(session, "bat_none")
