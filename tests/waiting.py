"""Waiting for what other threads and processes do. Knows deadlines only."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil


def until(
    condition: Callable[[], object], *, timeout_s: float = 20.0, tick: Callable[[], object] | None = None
) -> None:
    """Returns once `condition()` is true; fails the test after `timeout_s`. `tick` is called in between."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s:.0f} s in vain"
        if tick is None:
            time.sleep(0.02)
        else:
            tick()


def is_alive(pid: int) -> bool:
    """A zombie counts as dead: in a container nobody may reap an orphan."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
