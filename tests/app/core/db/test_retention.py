"""A batch is forgotten as a whole, once its last row is old; a vote outlives its comparison's words."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from app.core.compare_schemas import BatchIn, ChatMessage, ComparisonIn
from app.core.db import batches, comparisons, retention, votes
from app.core.db.tables import Comparison, Vote
from app.core.errors import NotFound
from tests.app.conftest import Clock

Sessions = sessionmaker[Session]
DAYS = timedelta(days=1)


@pytest.fixture
def batch_id(sessions: Sessions, clock: Clock) -> str:
    """Two rows, none of them answered."""
    rows = [batches.DataRow(messages=[{"role": "user", "content": f"row {i}"}], reference=None) for i in (1, 2)]
    request = BatchIn(dataset_id="ds_1", model_ids=["mdl_1"])
    with sessions.begin() as session:
        return batches.create(session, request=request, rows=rows, now=clock())[0].id


def answer_next(sessions: Sessions, clock: Clock) -> None:
    with sessions.begin() as session:
        claim = comparisons.claim_next(session, worker="w", now=clock())
        assert claim is not None
        comparisons.finish(session, comparison_id=claim.comparison_id, attempt=claim.attempt, now=clock(), answers=[])


def old(sessions: Sessions, clock: Clock) -> list[str]:
    """Batches that ended more than a day ago."""
    with sessions.begin() as session:
        return list(retention.old_batches(session, before=clock() - DAYS, limit=10))


def test_a_batch_is_over_with_its_last_row(sessions: Sessions, clock: Clock, batch_id: str) -> None:
    answer_next(sessions, clock)
    clock.advance(9 * 86400)
    assert old(sessions, clock) == []  # one row is nine days old, the other still waits
    answer_next(sessions, clock)
    assert old(sessions, clock) == []
    clock.advance(86401)
    assert old(sessions, clock) == [batch_id]


def test_a_batch_goes_with_all_its_rows(sessions: Sessions, clock: Clock, batch_id: str) -> None:
    for _ in range(2):
        answer_next(sessions, clock)
    clock.advance(2 * 86400)
    with sessions.begin() as session:
        assert retention.remove_batch(session, batch_id=batch_id, before=clock() - DAYS)
        assert session.scalars(select(Comparison.id)).all() == []
        with pytest.raises(NotFound):
            batches.get(session, batch_id)
        assert not retention.remove_batch(session, batch_id=batch_id, before=clock() - DAYS)


def test_a_batch_that_is_not_over_stays_whole(sessions: Sessions, clock: Clock, batch_id: str) -> None:
    answer_next(sessions, clock)
    clock.advance(9 * 86400)
    with sessions.begin() as session:
        assert not retention.remove_batch(session, batch_id=batch_id, before=clock())
        assert len(session.scalars(select(Comparison.id)).all()) == 2


def test_rows_of_batches_are_not_forgotten_one_by_one(sessions: Sessions, clock: Clock, batch_id: str) -> None:
    answer_next(sessions, clock)
    clock.advance(9 * 86400)
    with sessions.begin() as session:
        assert list(retention.old_comparisons(session, before=clock(), limit=10)) == []


def test_a_vote_outlives_its_comparison(sessions: Sessions, clock: Clock) -> None:
    request = ComparisonIn(model_ids=["mdl_1", "mdl_2"], messages=[ChatMessage(role="user", content="hi")], blind=True)
    with sessions.begin() as session:
        made = comparisons.create(session, request=request, now=clock()).id
    answer_next(sessions, clock)
    with sessions.begin() as session:
        votes.cast_vote(session, comparison_id=made, choice="tie", now=clock())
    clock.advance(2 * 86400)
    with sessions.begin() as session:
        assert list(retention.old_comparisons(session, before=clock() - DAYS, limit=10)) == [made]
        assert retention.remove_comparison(session, comparison_id=made, before=clock() - DAYS)
    with sessions.begin() as session:
        assert session.get(Comparison, made) is None
        assert session.get_one(Vote, made).outcome == "tie"
