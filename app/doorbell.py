"""Rings the queue after a commit, and notes that it did.

Knows that a failed ring is no failure: the row is committed, and the sweeper rings again. Does not know who waits.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import structlog
from sqlalchemy.orm import Session, sessionmaker

from app.core.db import comparisons, job_sweeps
from app.core.queue import JobQueue

log = structlog.stdlib.get_logger(__name__)


class Doorbell:
    """Both calls must follow the commit of the row they announce, or a worker may look before it is there."""

    def __init__(self, *, queue: JobQueue, sessions: sessionmaker[Session], clock: Callable[[], datetime]) -> None:
        self._queue = queue
        self._sessions = sessions
        self._clock = clock

    def ring_training(self, job_id: str) -> None:
        def note(session: Session) -> None:
            job_sweeps.mark_announced(session, job_id=job_id, now=self._clock())

        self._ring(self._queue.announce_training, job_id, note)

    def ring_comparison(self, comparison_id: str) -> None:
        def note(session: Session) -> None:
            comparisons.mark_announced(session, comparison_id=comparison_id, now=self._clock())

        self._ring(self._queue.announce_comparison, comparison_id, note)

    def _ring(self, announce: Callable[[str], None], subject_id: str, note: Callable[[Session], None]) -> None:
        try:
            announce(subject_id)
            with self._sessions.begin() as session:
                note(session)
        except Exception as error:  # brokers and databases raise what they like
            log.warning("not announced, the sweeper will try again", subject_id=subject_id, error=repr(error))
