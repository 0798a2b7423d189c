"""Readings: asked for once per answer and pair, never of what is blind, running or not there."""

from __future__ import annotations

import pytest
from sqlalchemy.orm import Session, sessionmaker

from app.core.compare_schemas import ChatMessage, ComparisonIn, DivergenceIn
from app.core.db import comparison_view, comparisons, divergences
from app.core.errors import Conflict, InvalidRequest, NotFound
from tests.app.conftest import Clock

Sessions = sessionmaker[Session]
WANTED = DivergenceIn(of="mdl_s", teacher_id="mdl_t", student_id="mdl_s")


@pytest.fixture
def comparison_id(sessions: Sessions, clock: Clock) -> str:
    request = ComparisonIn(model_ids=["mdl_t", "mdl_s"], messages=[ChatMessage(role="user", content="hi")])
    with sessions.begin() as session:
        return comparisons.create(session, request=request, now=clock()).id


def end(sessions: Sessions, clock: Clock, **values: object) -> str:
    with sessions.begin() as session:
        claim = comparisons.claim_next(session, worker="w", now=clock())
        assert claim is not None
        comparisons.finish(
            session,
            comparison_id=claim.comparison_id,
            attempt=claim.attempt,
            now=clock(),
            **values,  # type: ignore[arg-type]
        )
        return claim.comparison_id


def ask(sessions: Sessions, clock: Clock, comparison_id: str, request: DivergenceIn = WANTED) -> tuple[str, bool]:
    with sessions.begin() as session:
        row, is_new = divergences.ask(session, comparison_id=comparison_id, request=request, now=clock())
        return row.id, is_new


def test_the_same_reading_is_asked_for_once(sessions: Sessions, clock: Clock, comparison_id: str) -> None:
    end(sessions, clock, token_ids={"mdl_s": [1, 2], "mdl_t": [3]})
    first, is_new = ask(sessions, clock, comparison_id)
    assert is_new
    assert ask(sessions, clock, comparison_id) == (first, False)
    other = WANTED.model_copy(update={"of": "mdl_t"})
    assert ask(sessions, clock, comparison_id, other)[1]
    assert end(sessions, clock, code="vocabulary_mismatch", message="two") == first
    again, is_new = ask(sessions, clock, comparison_id)
    assert is_new
    assert again != first
    with sessions.begin() as session:
        shape = comparison_view.as_divergence(divergences.get(session, first))
    assert shape.error is not None
    assert (shape.status, shape.comparison_id, shape.error.code) == ("failed", comparison_id, "vocabulary_mismatch")


def test_a_running_one_and_a_model_without_answer_are_refused(
    sessions: Sessions, clock: Clock, comparison_id: str
) -> None:
    with pytest.raises(Conflict):
        ask(sessions, clock, comparison_id)
    end(sessions, clock, token_ids={"mdl_t": [3]})
    with pytest.raises(InvalidRequest) as caught:
        ask(sessions, clock, comparison_id)
    assert caught.value.field == "of"


def test_ids_of_one_kind_are_not_the_others(sessions: Sessions, clock: Clock, comparison_id: str) -> None:
    end(sessions, clock, token_ids={"mdl_s": [1]})
    reading, _ = ask(sessions, clock, comparison_id)
    with sessions.begin() as session:
        with pytest.raises(NotFound):
            divergences.get(session, comparison_id)
        with pytest.raises(NotFound):
            comparisons.get(session, reading)
