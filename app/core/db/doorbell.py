"""When a queued row should be announced (again). Knows times only; does not know tables, queues or messages."""

from __future__ import annotations

from datetime import datetime

_LONGEST_WAIT_S = 300.0


def due(queued_at: datetime, announced_at: datetime | None, *, now: datetime, older_than_s: float) -> bool:
    """True when the row waited `older_than_s` since it was queued or last announced.

    Every further announcement waits as long as all earlier ones together (at most five minutes), because a row may
    wait for hours behind others while nothing is lost, and messages nobody needs pile up in the broker.
    """
    if announced_at is None:
        return (now - queued_at).total_seconds() >= older_than_s
    wait_s = max(older_than_s, min((announced_at - queued_at).total_seconds(), _LONGEST_WAIT_S))
    return (now - announced_at).total_seconds() >= wait_s
