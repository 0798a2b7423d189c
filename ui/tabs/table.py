"""The tabs of the page, in order. To add one: a file beside this with `build(page)`, and a row here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ui.page import Page
from ui.tabs import compare, jobs, models, progress, submit


@dataclass(frozen=True)
class TabSpec:
    """`id` is the tab's name in the address; `build(page)` lays it out inside an open gr.Tab."""

    id: str
    label: str
    build: Callable[[Page], None]


TABS: Sequence[TabSpec] = (
    TabSpec("submit", "New job", submit.build),
    TabSpec("jobs", "Jobs", jobs.build),
    TabSpec("progress", "Progress", progress.build),
    TabSpec("compare", "Compare", compare.build),
    TabSpec("models", "Models", models.build),
)
