"""Every transition of a comparison, with its fence."""

from __future__ import annotations

import pytest
from sqlalchemy.orm import Session, sessionmaker

from app.core.compare_schemas import Answer, ChatMessage, ComparisonIn
from app.core.db import comparison_view, comparisons
from app.core.errors import AttemptLost, Conflict, InvalidRequest, NotFound
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


def test_partial_answers_are_fenced_and_a_stop_is_seen(sessions: Sessions, clock: Clock) -> None:
    comparison_id = create(sessions, clock)
    which = {"comparison_id": comparison_id, "attempt": 1}
    with sessions.begin() as session:
        comparisons.claim_next(session, worker="w", now=clock())
        partial = ANSWER.model_copy(update={"text": "hel", "finished": False})
        assert not comparisons.progress(session, **which, now=clock(), answers=[partial])
        assert comparison_view.as_shape(comparisons.get(session, comparison_id)).answers == [partial]
        assert not comparisons.wants_stop(session, **which)
        comparisons.request_cancel(session, comparison_id=comparison_id, now=clock())
        assert comparisons.wants_stop(session, **which)
        assert comparisons.progress(session, **which, now=clock(), answers=[ANSWER])
    with pytest.raises(AttemptLost), sessions.begin() as session:
        comparisons.progress(session, comparison_id=comparison_id, attempt=2, now=clock(), answers=[])
    with sessions.begin() as session:
        comparisons.finish(session, **which, now=clock(), status="cancelled")
        shape = comparison_view.as_shape(comparisons.get(session, comparison_id))
    assert (shape.status, shape.answers) == ("cancelled", [ANSWER])
    with pytest.raises(Conflict), sessions.begin() as session:
        comparisons.request_cancel(session, comparison_id=comparison_id, now=clock())


def test_a_waiting_one_is_cancelled_at_once_and_a_lost_one_by_the_sweeper(sessions: Sessions, clock: Clock) -> None:
    waiting = create(sessions, clock)
    with sessions.begin() as session:
        assert comparisons.request_cancel(session, comparison_id=waiting, now=clock()).status == "cancelled"
        assert comparisons.claim_next(session, worker="w", now=clock()) is None
    lost = create(sessions, clock)
    with sessions.begin() as session:
        comparisons.claim_next(session, worker="w", now=clock())
        comparisons.request_cancel(session, comparison_id=lost, now=clock())
        assert comparisons.requeue_stale(session, now=clock.advance(100), lease_s=60) == []
        assert comparisons.get(session, lost).status == "cancelled"


def test_a_later_turn_carries_each_models_own_answers(sessions: Sessions, clock: Clock) -> None:
    first = create(sessions, clock)
    turn = REQUEST.model_copy(update={"previous_id": first, "messages": [ChatMessage(role="user", content="and?")]})
    with pytest.raises(Conflict), sessions.begin() as session:
        comparisons.create(session, request=turn, now=clock())
    with sessions.begin() as session:
        comparisons.claim_next(session, worker="w", now=clock())
        comparisons.finish(session, comparison_id=first, attempt=1, now=clock(), answers=[ANSWER])
        second = comparisons.create(session, request=turn, now=clock())
        assert second.history == {
            "mdl_1": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
        }
        comparisons.claim_next(session, worker="w", now=clock())
        comparisons.finish(session, comparison_id=second.id, attempt=1, now=clock(), answers=[ANSWER])
        third = comparisons.create(session, request=turn.model_copy(update={"previous_id": second.id}), now=clock())
        assert [said["content"] for said in third.history["mdl_1"]] == ["hi", "hello", "and?", "hello"]
    stranger = turn.model_copy(update={"model_ids": ["mdl_2"]})
    with pytest.raises(InvalidRequest), sessions.begin() as session:
        comparisons.create(session, request=stranger, now=clock())


def test_the_list_has_what_people_asked(sessions: Sessions, clock: Clock) -> None:
    asked = create(sessions, clock)
    with sessions.begin() as session:
        comparisons.create(session, request=REQUEST, now=clock(), origin="chat")
        rows, has_more = comparisons.list_page(session, limit=5, after=None)
        assert ([row.id for row in rows], has_more) == ([asked], False)
        assert comparisons.uses_model(session, "mdl_1") == asked
        assert comparisons.uses_model(session, "mdl_2") is None
        assert comparisons.uses_checkpoints(session, "job_1") is None


def test_who_asks_a_checkpoint_of_a_job(sessions: Sessions, clock: Clock) -> None:
    with sessions.begin() as session:
        request = REQUEST.model_copy(update={"model_ids": ["mdl_1", "job_1@20"]})
        asked = comparisons.create(session, request=request, now=clock()).id
        assert comparisons.uses_checkpoints(session, "job_1") == asked
        assert comparisons.uses_checkpoints(session, "job_11") is None
        comparisons.request_cancel(session, comparison_id=asked, now=clock())
        assert comparisons.uses_checkpoints(session, "job_1") is None
