"""A database that goes away while it commits: what was written is there, and nobody was told.

Knows when to fail. Everything else is the real database.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from sqlalchemy import event
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, sessionmaker


@contextmanager
def losing_confirmations(sessions: sessionmaker[Session], *, every: int = 2) -> Iterator[None]:
    """In the block, the first of `every` commits is done but raises OperationalError."""
    numbers = count()

    def lose(_session: Session) -> None:
        if next(numbers) % every == 0:
            raise OperationalError("COMMIT", {}, Exception("server closed the connection unexpectedly"))

    event.listen(sessions, "after_commit", lose)
    try:
        yield
    finally:
        event.remove(sessions, "after_commit", lose)
