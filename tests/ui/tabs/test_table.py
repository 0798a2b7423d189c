from __future__ import annotations

from ui.tabs.table import TABS


def test_ids_fit_into_an_address_and_are_used_once() -> None:
    assert [spec.id for spec in TABS] == ["submit", "jobs", "progress", "compare", "models"]
    assert all(spec.id.isalnum() and spec.label for spec in TABS)
