"""What blind votes say about each pair of models, with the interval of the win rate. Knows VotesOut and ModelOut."""

from __future__ import annotations

from app.core.compare_schemas import PairVotes, VotesOut
from ui.model_names import Models, label_of
from ui.text import esc
from ui.views.pieces import empty

EMPTY = empty("No votes yet.", "Tick Blind before you compare two models: you then vote before you see who is who.")


def summary(votes: VotesOut, models: Models) -> str:
    """One row per pair; the rate is of the first model, among the votes that preferred one side."""
    if not votes.data:
        return EMPTY
    rows = "".join(_row(pair, models) for pair in votes.data)
    head = "".join(
        f'<th scope="col">{name}</th>' for name in ("Pair", "Wins", "Tie", "Both bad", "Win rate of the first")
    )
    return (
        '<div class="sh-wide" tabindex="0" role="region" aria-label="Votes by pair"><table class="sh-table"><thead>'
        f"<tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        '<p class="sh-note">The rate counts votes that preferred one side; in brackets its 95 % Wilson score interval. '
        "While the interval holds 50 %, the votes do not tell the two apart.</p>"
    )


def _row(pair: PairVotes, models: Models) -> str:
    first, second = (esc(label_of(one, models)) for one in (pair.model_a, pair.model_b))
    rate = "–"
    if pair.rate is not None and pair.low is not None and pair.high is not None:
        rate = f"{pair.rate:.0%} ({pair.low:.0%} to {pair.high:.0%})"
    return (
        f'<tr><th scope="row"><bdi>{first}</bdi> against <bdi>{second}</bdi></th><td>{pair.wins_a} : {pair.wins_b}</td>'
        f"<td>{pair.ties}</td><td>{pair.both_bad}</td><td>{rate}</td></tr>"
    )
