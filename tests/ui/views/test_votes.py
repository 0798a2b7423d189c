from __future__ import annotations

from app.core.compare_schemas import PairVotes, VotesOut
from ui.views.votes import EMPTY, summary

PAIR = PairVotes(model_a="<a>", model_b="mdl_b", wins_a=8, wins_b=2, ties=1, both_bad=0, rate=0.8, low=0.49, high=0.943)


def test_the_rate_comes_with_its_interval() -> None:
    shown = summary(VotesOut(data=[PAIR]), {})
    assert "80% (49% to 94%)" in shown
    assert "8 : 2" in shown
    assert "&lt;a&gt;" in shown


def test_no_votes_and_no_preference() -> None:
    assert summary(VotesOut(data=[]), {}) == EMPTY
    undecided = PAIR.model_copy(update={"wins_a": 0, "wins_b": 0, "rate": None, "low": None, "high": None})
    assert "<td>–</td>" in summary(VotesOut(data=[undecided]), {})
