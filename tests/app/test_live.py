"""Following a row: every change once, a sign of life in between, the end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from app.live import changes


def follow(states: Sequence[str], *, ping_s: float) -> list[str | None]:
    """What is told of a row that is in these states, one look after the other."""
    looks = iter(states)

    async def collect() -> list[str | None]:
        told = changes(lambda: next(looks), poll_s=0.001, has_ended=lambda state: state == "done", ping_s=ping_s)
        return [state async for state in told]

    return asyncio.run(collect())


def test_a_change_is_told_once_and_the_end_ends_it() -> None:
    assert follow(["queued", "queued", "half", "half", "done", "never read"], ping_s=60) == ["queued", "half", "done"]


def test_silence_is_broken_for_proxies() -> None:
    assert follow(["half", "half", "done"], ping_s=0) == ["half", None, "done"]
