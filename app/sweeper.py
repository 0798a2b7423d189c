"""Finds what a lost message, a dead worker or a restarted broker left behind, and gets it going again.

Knows leases, announcements and what waits for what. Does not know how a job runs. Any number of API processes may sweep
at once: each change is conditional, and a message too many does no harm.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import structlog
from sqlalchemy.orm import Session, sessionmaker

from app.background import Repeated
from app.core.db import comparisons, job_requests, job_sweeps, workers
from app.core.queue import TRAINING_QUEUE
from app.doorbell import Doorbell

log = structlog.stdlib.get_logger(__name__)


class Sweeper:
    """`start` runs `sweep` every `sweep_s` seconds in a thread of its own until `stop`. `free_bytes` says how much
    space the artifact store has, None where that cannot be known."""

    def __init__(
        self,
        *,
        sessions: sessionmaker[Session],
        doorbell: Doorbell,
        lease_s: float,
        sweep_s: float,
        clock: Callable[[], datetime],
        free_bytes: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._sessions = sessions
        self._doorbell = doorbell
        self._lease_s = lease_s
        self._sweep_s = sweep_s
        self._clock = clock
        self._free_bytes = free_bytes
        self._repeated = Repeated(self.sweep, name="sweeper", pause_s=sweep_s)

    def start(self) -> None:
        self._repeated.start()

    def stop(self) -> None:
        """Returns when the thread has ended; a sweep that is under way is finished first."""
        self._repeated.stop()

    def sweep(self) -> None:
        """Re-queues what lost its worker or waited for disk space, then announces what waits unheard."""
        now, overdue_s = self._clock(), 2 * self._sweep_s  # what was just queued is announced by its own request
        with self._sessions.begin() as session:
            lost_jobs = job_sweeps.requeue_stale(session, now=now, lease_s=self._lease_s)
            lost_comparisons = comparisons.requeue_stale(session, now=now, lease_s=self._lease_s)
            lost_jobs += self._resume_where_space_came_back(session, now)
            seen = workers.seen(session, now=now, lease_s=self._lease_s, queue=TRAINING_QUEUE)
            job_sweeps.note_waiting(session, largest_bytes=max((worker.memory_bytes for worker in seen), default=None))
            unheard_jobs = job_sweeps.unannounced(session, now=now, older_than_s=overdue_s)
            unheard_comparisons = comparisons.unannounced(session, now=now, older_than_s=overdue_s)
        if lost_jobs or lost_comparisons:
            log.warning(
                "queued again: their workers stopped answering, or there is space again",
                jobs=lost_jobs,
                comparisons=lost_comparisons,
            )
        for job_id in lost_jobs + unheard_jobs:
            self._doorbell.ring_training(job_id)
        for comparison_id in lost_comparisons + unheard_comparisons:
            self._doorbell.ring_comparison(comparison_id)

    def _resume_where_space_came_back(self, session: Session, now: datetime) -> list[str]:
        waiting = job_sweeps.waiting_for_space(session)
        free = self._free_bytes() if waiting else None
        enough = [job_id for job_id, needed in waiting if free is not None and free >= needed]
        for job_id in enough:
            job_requests.resume(session, job_id=job_id, now=now)
        return enough
