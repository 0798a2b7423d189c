"""A thread beside the work of a block: it begins with the block, is told to leave at its end, and is waited for.

Knows starting and ending. Does not know what the thread does: a subclass's `_run` does.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Companion(ABC):
    """Context manager. `_run` returns soon after `_leaving` is set."""

    def __init__(self, name: str) -> None:
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def _run(self) -> None:
        """What the thread does, until `_leaving` is set."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leaving.set()
        self._thread.join()
