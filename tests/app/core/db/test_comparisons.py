"""Every transition of a comparison, with its fence."""

from __future__ import annotations

import pytest
from sqlalchemy.orm import Session, sessionmaker

from app.core.db import comparison_view, comparisons
from app.core.errors import AttemptLost, NotFound
from app.core.compare_schemas import Answer, ChatMessage, ComparisonIn
from tests.app.conftest import Clock

Sessions = sessionmaker[Session]
REQUEST = ComparisonIn(model_ids=["mdl_1"], messages=[ChatMessage(role="user", content="hi")], seed=3)
ANSWER = Answer(
    model_id="mdl_1",
    text="hello",
    tokens=1,
    seconds=0.5,
    tokens_per_s=2.0,
    finished=True,
    parameters=9,
    weights_sha256="ab",
)


def create(sessions: Sessions, clock: Clock) -> str:
    with sessions.begin() as session:
        return comparisons.create(session, request=REQUEST, now=clock()).id


def test_a_comparison_is_answered(sessions: Sessions, clock: Clock) -> None:
    comparison_id = create(sessions, clock)
    with sessions.begin() as session:
        claim = comparisons.claim_next(session, worker="w", now=clock())
        assert claim is not None
        assert (claim.comparison_id, claim.attempt) == (comparison_id, 1)
        assert ComparisonIn.model_validate(claim.request) == REQUEST
        assert comparisons.claim_next(session, worker="w", now=clock()) is None
    with sessions.begin() as session:
        comparisons.finish(session, comparison_id=comparison_id, attempt=1, now=clock(), answers=[ANSWER])
    with sessions.begin() as session:
        shape = comparison_view.as_shape(comparisons.get(session, comparison_id))
    assert (shape.status, shape.request, list(shape.answers), shape.error) == ("succeeded", REQUEST, [ANSWER], None)
    assert shape.finished_at == clock()


def test_a_failure_says_why(sessions: Sessions, clock: Clock) -> None:
    comparison_id = create(sessions, clock)
    with sessions.begin() as session:
        comparisons.claim_next(session, worker="w", now=clock())
        comparisons.finish(
            session, comparison_id=comparison_id, attempt=1, now=clock(), code="out_of_memory", message="less"
        )
        shape = comparison_view.as_shape(comparisons.get(session, comparison_id))
    assert shape.error is not None
    assert (shape.status, shape.error.code, shape.error.message) == ("failed", "out_of_memory", "less")


def test_a_lost_worker_is_replaced_and_fenced_off(sessions: Sessions, clock: Clock) -> None:
    comparison_id = create(sessions, clock)
    for attempt in (1, 2, 3):
        with sessions.begin() as session:
            claim = comparisons.claim_next(session, worker="w", now=clock())
            assert claim is not None
            assert claim.attempt == attempt
            comparisons.heartbeat(session, comparison_id=comparison_id, attempt=attempt, now=clock.advance(50))
            assert comparisons.requeue_stale(session, now=clock.advance(50), lease_s=60) == []
        with sessions.begin() as session:
            requeued = comparisons.requeue_stale(session, now=clock.advance(20), lease_s=60)
            assert requeued == ([comparison_id] if attempt < 3 else [])
        with pytest.raises(AttemptLost), sessions.begin() as session:
            comparisons.heartbeat(session, comparison_id=comparison_id, attempt=attempt, now=clock())
        with pytest.raises(AttemptLost), sessions.begin() as session:
            comparisons.finish(session, comparison_id=comparison_id, attempt=attempt, now=clock(), answers=[ANSWER])
    with sessions.begin() as session:
        shape = comparison_view.as_shape(comparisons.get(session, comparison_id))
    assert shape.error is not None
    assert (shape.status, shape.error.code) == ("failed", "worker_lost")


def test_waiting_comparisons_are_announced(sessions: Sessions, clock: Clock) -> None:
    comparison_id = create(sessions, clock)
    with sessions.begin() as session:
        assert comparisons.unannounced(session, now=clock.advance(5), older_than_s=10) == []
        assert comparisons.unannounced(session, now=clock.advance(5), older_than_s=10) == [comparison_id]
        comparisons.mark_announced(session, comparison_id=comparison_id, now=clock())
        assert comparisons.unannounced(session, now=clock.advance(5), older_than_s=10) == []


def test_unknown_ids(sessions: Sessions) -> None:
    with pytest.raises(NotFound), sessions.begin() as session:
        comparisons.get(session, "cmp_none")
