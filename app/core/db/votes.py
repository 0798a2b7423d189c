"""Blind votes: one per comparison, and what they say about a pair.

Knows who was A. Does not know how answers are shown (`comparison_view` masks them until here).
"""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from math import sqrt

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from app.core.compare_schemas import Choice, PairVotes
from app.core.db import comparisons
from app.core.db.tables import Comparison, Vote
from app.core.errors import Conflict

_Z = 1.959964  # the normal distribution's 97.5 % point


def cast_vote(session: Session, *, comparison_id: str, choice: Choice, now: datetime) -> Comparison:
    """Stores the vote and reveals the models. Conflict if the comparison is not blind, not answered, or voted on."""
    comparison = comparisons.get(session, comparison_id)
    open_vote = (Comparison.hidden, Comparison.status == "succeeded")
    statement = update(Comparison).where(Comparison.id == comparison_id, *open_vote).values(hidden=False, vote=choice)
    options = {"synchronize_session": False}
    if session.execute(statement.returning(Comparison.id), execution_options=options).first() is None:
        raise Conflict(f"{comparison_id} takes no vote: only a blind comparison that is answered does, and only one")
    first, second = comparison.request["model_ids"]
    outcome = choice
    if first > second:  # the pair is stored in one order, whoever was A
        first, second = second, first
        outcome = {"a": "b", "b": "a"}.get(choice, choice)  # type: ignore[assignment]
    session.add(Vote(comparison_id=comparison_id, model_a=first, model_b=second, outcome=outcome, created_at=now))
    session.flush()
    return comparisons.get(session, comparison_id)


def summary(session: Session) -> list[PairVotes]:
    """Every pair that was voted on, most votes first."""
    counts: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    query = select(Vote.model_a, Vote.model_b, Vote.outcome, func.count())
    for model_a, model_b, outcome, number in session.execute(query.group_by(Vote.model_a, Vote.model_b, Vote.outcome)):
        counts[model_a, model_b][outcome] = number
    pairs = sorted(counts.items(), key=lambda item: (-sum(item[1].values()), item[0]))
    return [_pair(model_a, model_b, found) for (model_a, model_b), found in pairs]


def _pair(model_a: str, model_b: str, found: dict[str, int]) -> PairVotes:
    wins_a, wins_b = found.get("a", 0), found.get("b", 0)
    decided = wins_a + wins_b
    low, high = wilson(wins_a, decided) if decided else (None, None)
    return PairVotes(
        model_a=model_a,
        model_b=model_b,
        wins_a=wins_a,
        wins_b=wins_b,
        ties=found.get("tie", 0),
        both_bad=found.get("both_bad", 0),
        rate=wins_a / decided if decided else None,
        low=low,
        high=high,
    )


def wilson(wins: int, total: int) -> tuple[float, float]:
    """The 95 % score interval of a share (Wilson 1927, JASA 22:209; Brown, Cai and DasGupta 2001, Eq. 4)."""
    share, z2 = wins / total, _Z**2
    centre = (share + z2 / (2 * total)) / (1 + z2 / total)
    half = _Z / (1 + z2 / total) * sqrt(share * (1 - share) / total + z2 / (4 * total**2))
    return max(0.0, centre - half), min(1.0, centre + half)
