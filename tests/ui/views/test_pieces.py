from __future__ import annotations

import pytest

from ui.views.pieces import bar, callout, listed


@pytest.mark.parametrize(("kind", "role"), [("error", "alert"), ("warning", "status"), ("good", "status")])
def test_only_errors_interrupt_a_screen_reader(kind: str, role: str) -> None:
    assert f'role="{role}"' in callout(kind, "Title", "<p>body</p>")


@pytest.mark.parametrize(("share", "width"), [(-0.5, "0.0%"), (0.25, "25.0%"), (7.0, "100.0%")])
def test_a_bar_stays_in_its_frame(share: float, width: str) -> None:
    assert f"width:{width}" in bar(share)


def test_a_list_without_items_is_nothing() -> None:
    assert listed([]) == ""
    assert listed(iter(["a", "b"])) == "<ul><li>a</li><li>b</li></ul>"
