"""Drops what a run tells again: a run that goes on from a checkpoint repeats the steps behind it, event by event.

Knows how many training events are stored already. Does not know where they are stored.
"""

from __future__ import annotations

from app.core.events import Emit, Event, Resumed, is_training_event


def without_replays(emit: Emit, *, stored: int) -> Emit:
    """An `emit` that leaves out the first training events of a run of which `stored` are there from earlier attempts.

    A run that starts from nothing tells all of them again, one that resumes those behind its checkpoint.
    """
    to_drop = stored

    def emit_new(event: Event) -> None:
        nonlocal to_drop
        if isinstance(event, Resumed):
            to_drop = stored - event.training_events
        if to_drop > 0 and is_training_event(event):
            to_drop -= 1
        else:
            emit(event)

    return emit_new
