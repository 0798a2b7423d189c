"""Asking tiny models with a runner of the test's own, and reading what became of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from sqlalchemy.orm import Session, sessionmaker

from app.core.compare_schemas import ComparisonIn
from app.core.db import comparisons
from app.core.db.tables import Comparison
from worker.comparisons import ComparisonRunner

NOW = datetime.now(UTC)


def seldom() -> None:
    """Every look takes SQLite's one lock, and with all threads of this test behind one interpreter's lock, a busy
    loop would keep the recorder out."""
    time.sleep(0.4)


@contextmanager
def working(runner: ComparisonRunner) -> Iterator[None]:
    """The runner does what is queued, in a thread."""
    thread = threading.Thread(target=runner.run_next, kwargs={"worker": "w"})
    thread.start()
    try:
        yield
    finally:
        thread.join()


def ask(sessions: sessionmaker[Session], model_ids: Sequence[str], *, max_new_tokens: int = 6) -> str:
    request = ComparisonIn.model_validate(
        {
            "model_ids": model_ids,
            "messages": [{"role": "user", "content": "the small brown dog"}],
            "max_new_tokens": max_new_tokens,
        }
    )
    with sessions.begin() as session:
        return comparisons.create(session, request=request, now=NOW).id


def read(sessions: sessionmaker[Session], comparison_id: str) -> Comparison:
    with sessions.begin() as session:
        return comparisons.get(session, comparison_id)
