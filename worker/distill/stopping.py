"""What happens at a step boundary when someone wants the run to stop.

Knows the two wishes and their errors. Does not know who wishes, nor what is kept: a pause that keeps a checkpoint
writes it before it comes here.
"""

from __future__ import annotations

from typing import NoReturn

from app.core.errors import Cancelled, Paused
from worker.distill.types import ShouldStop, Stop


def stop(wish: Stop, where: str) -> NoReturn:
    """Raises Paused or Cancelled. `where` ends the sentence "stopped ..."."""
    if wish == "pause":
        raise Paused(f"paused {where}")
    raise Cancelled(f"stopped {where}")


def stop_if_asked(should_stop: ShouldStop, where: str) -> None:
    """Raises Paused or Cancelled when `should_stop()` says so."""
    if wish := should_stop():
        stop(wish, where)
