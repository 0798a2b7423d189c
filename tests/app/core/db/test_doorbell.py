"""When a queued row is announced again: pauses double, up to five minutes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from app.core.db.doorbell import due

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def test_a_row_that_was_never_announced_waits_once() -> None:
    assert not due(START, None, now=at(4.9), older_than_s=5)
    assert due(START, None, now=at(5), older_than_s=5)


def test_pauses_double_and_stop_growing_at_five_minutes() -> None:
    announced, pauses, now = 0.0, [], 0.0
    while len(pauses) < 9:
        now += 1
        if due(START, at(announced), now=at(now), older_than_s=10):
            pauses.append(now - announced)
            announced = now
    assert pauses == [10, 10, 20, 40, 80, 160, 300, 300, 300]
