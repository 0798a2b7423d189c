"""What a worker believes of its job, and what a job's events must tell, whatever happened.

For the state machine in `test_life_model.py`. Knows no database.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from app.core.db.tables import EventRow, Job
from app.core.events import Evaluated, Event, Resumed, StatusChanged, parse_event
from worker.replays import without_replays

# Which status may follow which, by whoever's doing.
FOLLOWS = {
    "queued": {"running", "cancelled", "paused"},
    "running": {"queued", "paused", "succeeded", "failed", "cancelled"},
    "paused": {"queued", "cancelled"},
    "succeeded": set(),
    "failed": {"queued"},
    "cancelled": {"queued"},
}


@dataclass
class Attempt:
    """A worker's own idea of what it does: `told` counts what its run said since the job's start from nothing.
    `last_seq` is the number of the event before the first of `unsent`, as far as the worker knows."""

    job_id: str
    number: int
    stored: int  # training events, when it took the job
    told: int
    last_seq: int
    unsent: list[Event] = field(default_factory=list)

    def say(self, event: Event) -> None:
        if isinstance(event, Evaluated):
            self.told += 1
        self.emit(event)

    def confirmed(self) -> None:
        """All that was sent is stored."""
        self.last_seq += len(self.unsent)
        self.unsent.clear()

    def __post_init__(self) -> None:
        self.emit = without_replays(self.unsent.append, stored=self.stored)
        if self.told:
            self.emit(Resumed(step=self.told, training_events=self.told))


def check_story(job: Job, rows: Sequence[EventRow], *, clean_since: int) -> None:
    """Numbers without a hole, allowed changes of status, each training event since the job's last start from nothing
    (the event `clean_since`) once and in order, and no attempt that writes after a later one."""
    assert [row.seq for row in rows] == list(range(1, job.last_seq + 1))
    told = [parse_event(row.payload) for row in rows]
    statuses = [event.status for event in told if isinstance(event, StatusChanged)]
    assert all(after in FOLLOWS[before] for before, after in pairwise(statuses)), statuses
    assert (statuses[0], statuses[-1]) == ("queued", job.status)
    steps = [event.step for event in told[clean_since:] if isinstance(event, Evaluated)]
    assert steps == list(range(1, job.training_events + 1))
    assert [row.attempt for row in rows] == sorted(row.attempt for row in rows)
    assert job.failures <= job.max_attempts
