"""Blind votes: one each, stored by pair whoever was A, and the interval of the win rate."""

from __future__ import annotations

import pytest
from sqlalchemy.orm import Session, sessionmaker

from app.core.compare_schemas import Answer, ChatMessage, Choice, ComparisonIn
from app.core.db import comparison_view, comparisons, votes
from app.core.errors import Conflict
from tests.app.conftest import Clock

Sessions = sessionmaker[Session]
PAIR = ["mdl_a", "mdl_b"]


def answer(model_id: str) -> Answer:
    return Answer(
        model_id=model_id,
        text=f"by {model_id}"[:2],
        tokens=1,
        seconds=0.5,
        tokens_per_s=2.0,
        finished=True,
        parameters=9,
        weights_sha256="ab",
        first_token_s=0.1,
        finish="stop",
        template="chat",
        prompt_tokens=3,
    )


def blind(sessions: Sessions, clock: Clock, *, answered: bool = True) -> str:
    request = ComparisonIn(model_ids=PAIR, messages=[ChatMessage(role="user", content="hi")], blind=True)
    with sessions.begin() as session:
        made = comparisons.create(session, request=request, now=clock()).id
        if answered:
            claim = comparisons.claim_next(session, worker="w", now=clock())
            assert claim is not None
            answers = [answer(one) for one in claim.request["model_ids"]]
            comparisons.finish(
                session, comparison_id=made, attempt=claim.attempt, now=clock(), answers=answers, token_ids={}
            )
        return made


def test_nothing_that_the_api_shows_tells_the_models_apart(sessions: Sessions, clock: Clock) -> None:
    for answered in (True, False):
        made = blind(sessions, clock, answered=answered)
        with sessions.begin() as session:
            row = comparisons.get(session, made)
            shown = comparison_view.as_shape(row).model_dump_json() + comparison_view.as_line(row).model_dump_json()
        assert "mdl_" not in shown
        assert '"ab"' not in shown
        assert '"parameters":9' not in shown
        assert '"seconds":0.5' not in shown
        assert '"first_token_s":0.1' not in shown


def test_the_order_is_shuffled(sessions: Sessions, clock: Clock) -> None:
    """Forty times the same order happens by chance once in 10^12."""
    first = set()
    for _ in range(40):
        made = blind(sessions, clock, answered=False)
        with sessions.begin() as session:
            first.add(comparisons.get(session, made).request["model_ids"][0])
    assert first == set(PAIR)


def test_a_vote_reveals_once(sessions: Sessions, clock: Clock) -> None:
    made = blind(sessions, clock)
    with sessions.begin() as session:
        row = votes.cast_vote(session, comparison_id=made, choice="tie", now=clock())
        shape = comparison_view.as_shape(row)
    assert (sorted(shape.request.model_ids), shape.vote, shape.hidden) == (PAIR, "tie", False)
    assert shape.answers[0].parameters == 9
    with pytest.raises(Conflict, match="only one"), sessions.begin() as session:
        votes.cast_vote(session, comparison_id=made, choice="a", now=clock())


def test_no_vote_before_the_answers_and_none_without_a_blind(sessions: Sessions, clock: Clock) -> None:
    waiting = blind(sessions, clock, answered=False)
    request = ComparisonIn(model_ids=PAIR, messages=[ChatMessage(role="user", content="hi")])
    with sessions.begin() as session:
        seen = comparisons.create(session, request=request, now=clock()).id
    for made in (waiting, seen):
        with pytest.raises(Conflict), sessions.begin() as session:
            votes.cast_vote(session, comparison_id=made, choice="a", now=clock())


def test_votes_are_counted_for_the_model_and_not_for_the_place(sessions: Sessions, clock: Clock) -> None:
    """Whoever was A: mdl_a wins three times, loses once, and there is a tie and a both-bad."""
    for winner in ("mdl_a", "mdl_a", "mdl_a", "mdl_b", "tie", "both_bad"):
        made = blind(sessions, clock)
        with sessions.begin() as session:
            order = comparisons.get(session, made).request["model_ids"]
            choices: tuple[Choice, Choice] = ("a", "b")
            choice = choices[order.index(winner)] if winner in order else winner
            votes.cast_vote(session, comparison_id=made, choice=choice, now=clock())
    with sessions.begin() as session:
        (pair,) = votes.summary(session)
    assert (pair.model_a, pair.model_b) == ("mdl_a", "mdl_b")
    assert (pair.wins_a, pair.wins_b, pair.ties, pair.both_bad) == (3, 1, 1, 1)
    assert pair.rate == 0.75
    assert pair.low is not None
    assert pair.high is not None
    assert 0 < pair.low < 0.75 < pair.high < 1


@pytest.mark.parametrize(
    ("wins", "total", "low", "high"),
    # Newcombe 1998, Statistics in Medicine 17:857, table I, method 3 (score, without continuity correction).
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_the_interval_is_the_published_one(wins: int, total: int, low: float, high: float) -> None:
    assert votes.wilson(wins, total) == pytest.approx((low, high), abs=5e-5)
    mirrored = votes.wilson(total - wins, total)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=5e-5)
