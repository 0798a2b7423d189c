from __future__ import annotations

from tests.ui.conftest import SeededService
from tests.ui.seed import HOSTILE
from ui.client import StillhouseClient
from ui.tabs import past
from ui.text import esc


def test_earlier_comparisons_are_links_and_blind_ones_stay_blind(api: StillhouseClient, seeded: SeededService) -> None:
    found = past.read(api, seeded.ids.comparison)["history"]
    assert f"cmp={seeded.ids.comparison}" in found
    assert 'aria-current="true"' in found
    assert HOSTILE not in found
    assert esc("Which is better?") in found
    assert "blind, not voted on" in found


def test_an_api_that_is_away_keeps_what_is_shown(nobody: StillhouseClient) -> None:
    assert set(past.read(nobody, "")) == {"banner"}
