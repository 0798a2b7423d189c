"""Work that is repeated in a thread while the application runs.

Knows threads and pauses. Does not know the work, nor lets one failure of it be the last try.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

log = structlog.stdlib.get_logger(__name__)


class Repeated:
    """`start` calls `work` after every `pause_s` seconds, in a thread called `name`, until `stop`."""

    def __init__(self, work: Callable[[], object], *, name: str, pause_s: float) -> None:
        self._work = work
        self._name = name
        self._pause_s = pause_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when the thread has ended; work that is under way is finished first."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._pause_s):
            try:
                self._work()
            except Exception as error:  # a database that is away comes back; the thread must outlive it
                log.warning("failed, the next time may succeed", work=self._name, error=repr(error))
