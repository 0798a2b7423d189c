from __future__ import annotations

import re

from tests.ui.conftest import SeededService
from ui.client import StillhouseClient
from ui.views.panes import panes


def test_every_pane_shows_its_own_model(api: StillhouseClient, seeded: SeededService) -> None:
    """Also when answers come in another order than asked for."""
    comparison = api.comparison(seeded.ids.comparison)
    shuffled = comparison.model_copy(update={"answers": tuple(reversed(comparison.answers))})
    models = {one: api.model(one) for one in comparison.request.model_ids}
    html = panes(shuffled, models)
    cards = re.findall(r"<article.*?</article>", html, flags=re.DOTALL)
    assert [re.search(r"<span>(.*?)</span>", card).group(1) for card in cards] == [  # type: ignore[union-attr]
        "Teacher",
        "Untrained student",
        "Student",
    ]
    for index, card in enumerate(cards):
        assert f"{index}a" * 5 in card
    assert "134.5M" in cards[0]
    assert html == panes(comparison, models)


def test_answers_are_text_and_a_cut_one_says_so(api: StillhouseClient, seeded: SeededService) -> None:
    html = panes(api.comparison(seeded.ids.comparison), {})
    assert "<script" not in html
    assert html.count("&lt;script&gt;") == 3
    assert html.count("Cut at the largest number of tokens") == 1
    assert "greedy, seed 0, at most 128 new tokens" in html


def test_a_model_that_is_still_writing_waits_and_a_failure_is_told(
    api: StillhouseClient, seeded: SeededService
) -> None:
    comparison = api.comparison(seeded.ids.comparison)
    html = panes(comparison.model_copy(update={"answers": (), "status": "queued"}), {})
    assert html.count("Waiting for a worker") == 3
    failed = {"answers": (), "status": "failed", "error": {"code": "model_not_found", "message": "<gone>"}}
    html = panes(type(comparison).model_validate(comparison.model_dump() | failed), {})
    assert "&lt;gone&gt;" in html
    assert html.count("No answer.") == 3
