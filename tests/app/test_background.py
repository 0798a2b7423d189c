"""Repeated work goes on after an error, and ends when it is told to."""

from __future__ import annotations

import threading

from app.background import Repeated
from tests.waiting import until


def test_an_error_is_not_the_last_try() -> None:
    calls = []

    def work() -> None:
        calls.append(threading.current_thread().name)
        if len(calls) == 1:
            raise OSError("the database is away")

    repeated = Repeated(work, name="worker bee", pause_s=0.005)
    repeated.start()
    until(lambda: len(calls) >= 3)
    repeated.stop()
    so_far = len(calls)
    assert set(calls) == {"worker bee"}
    assert not any(thread.name == "worker bee" for thread in threading.enumerate())
    assert len(calls) == so_far
