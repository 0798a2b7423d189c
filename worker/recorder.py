"""From a running task to the database: events, heartbeats and the wish to stop, without ever holding up the work.

Knows a background thread, retries, and when to give up. Does not know what is written: the caller's `write` does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Literal, TypeVar

import structlog
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.orm import Session, sessionmaker

from app.core.events import Event
from worker.companion import Companion

Stop = Literal["cancel", "pause"]
# Stores the events and says that the attempt is alive, in one transaction; how the work should stop (True: cancel), if
# it should. The number is how many events before these are stored for certain: a database that went away while it
# committed may have stored some of these too. Raises AttemptLost when the attempt is not the current one any more.
Write = Callable[[Session, Sequence[Event], int], Stop | bool | None]
T = TypeVar("T")

# What SQLAlchemy raises when a database cannot be reached or is locked; anything else is an error of ours.
DATABASE_AWAY = (OperationalError, InterfaceError)
# How long a finished work waits for a database that is away before its result is given up.
PATIENCE_S = 600.0

log = structlog.stdlib.get_logger(__name__)


def in_transaction(sessions: sessionmaker[Session], work: Callable[[Session], T], *, patience_s: float) -> T:
    """`work` in one transaction; tried again every second, up to `patience_s`, while the database is away."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            with sessions.begin() as session:
                return work(session)
        except DATABASE_AWAY as error:
            if time.monotonic() >= deadline:
                raise
            log.warning("database is away, trying again", error=str(error.orig))
            time.sleep(1.0)


class Recorder(Companion):
    """Context manager around one attempt. `emit` and `should_stop` are safe in any thread and never wait.

    A thread calls `write` with the events of the last `flush_s` seconds, or with none every `heartbeat_s`. While the
    database is away, events are kept and written later. Leaving the block writes what is left. `should_stop()` is what
    the last `write` said, so a wish can be taken back. If the claim is lost (or writing fails for another reason), it
    is "cancel" and leaving the block raises that error, whatever the block itself raised: it may only have been stopped
    by it.
    """

    def __init__(
        self,
        *,
        sessions: sessionmaker[Session],
        write: Write,
        heartbeat_s: float,
        flush_s: float = 0.5,
        patience_s: float = PATIENCE_S,
    ) -> None:
        super().__init__("recorder")
        self._sessions = sessions
        self._write = write
        self._heartbeat_s = heartbeat_s
        self._flush_s = min(flush_s, heartbeat_s)
        self._patience_s = patience_s
        self._pending: list[Event] = []
        self._num_stored = 0
        self._lock = threading.Lock()
        self._stop: Stop | None = None
        self._error: Exception | None = None

    def emit(self, event: Event) -> None:
        with self._lock:
            self._pending.append(event)

    def should_stop(self) -> Stop | None:
        return self._stop

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, raised, traceback)
        if self._error is None:
            in_transaction(self._sessions, self._flush, patience_s=self._patience_s)
        else:
            raise self._error from raised

    def _run(self) -> None:
        """The thread: one write per `flush_s` with news, one per `heartbeat_s` without."""
        beat_at = time.monotonic()
        while not self._leaving.wait(self._flush_s):
            if not self._pending and time.monotonic() < beat_at:
                continue
            beat_at = time.monotonic() + self._heartbeat_s
            try:
                with self._sessions.begin() as session:
                    num_written, wish = self._flush(session)
            except DATABASE_AWAY as error:
                log.warning("database is away, events are kept", kept=len(self._pending), error=str(error.orig))
            except Exception as error:
                self._error = error
                self._stop = "cancel"
                return
            else:
                self._written(num_written, wish)

    def _flush(self, session: Session) -> tuple[int, Stop | None]:
        with self._lock:
            events = tuple(self._pending)
        wish = self._write(session, events, self._num_stored)
        return len(events), "cancel" if wish is True else wish or None

    def _written(self, num_events: int, wish: Stop | None) -> None:
        """After the commit: forgets what is stored."""
        with self._lock:
            del self._pending[:num_events]
            self._num_stored += num_events
        self._stop = wish
