"""Where a step's time goes: seconds summed by name.

Knows wall-clock time as the host sees it. Does not wait for a GPU's queue, so on a GPU a section is charged when a
later one first needs its result.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """`with clock("generate"): ...` adds to the section's seconds; `take()` returns them and starts anew."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, section: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[section] = self._seconds.get(section, 0.0) + time.perf_counter() - start

    @contextmanager
    def rest(self, section: str) -> Iterator[None]:
        """Charges to `section` what passes inside and is charged to no other."""
        start, before = time.perf_counter(), sum(self._seconds.values())
        try:
            yield
        finally:
            elsewhere = sum(self._seconds.values()) - before
            rest = max(0.0, time.perf_counter() - start - elsewhere)
            self._seconds[section] = self._seconds.get(section, 0.0) + rest

    def take(self) -> dict[str, float]:
        taken, self._seconds = self._seconds, {}
        return taken
