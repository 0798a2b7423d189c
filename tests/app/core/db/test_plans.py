"""What is asked often reads an index, however large the tables: the plans of both back ends, at a size where PostgreSQL
would rather scan if it could not."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, Table, event, insert, select, text
from sqlalchemy.orm import Session, sessionmaker

from app.core.db import comparisons, curves, events, job_sweeps, jobs, retention
from app.core.db.tables import Job
from tests.app.conftest import Clock, make_config

Sessions = sessionmaker[Session]
JOBS, EVENTS_EACH = 3000, 15
JOB = f"job_0{JOBS // 2:05}"
# SQLite calls the walk along an index a scan too, and names the index.
SCAN = re.compile(r"(Seq Scan on|SCAN) (jobs|events|metrics|metric_ranges)\b(?! USING)")


@pytest.fixture
def full(engine: Engine, sessions: Sessions, clock: Clock) -> Sessions:
    """Thousands of ended jobs with events and curves, and a few that wait and run."""
    with sessions.begin() as session:
        for _ in range(3):
            jobs.create(session, name="waits", config=make_config(), priority=0, now=clock())
        jobs.claim_next(session, worker="w", now=clock())
    with engine.begin() as connection:
        pattern = dict(connection.execute(select(table_of(Job)).limit(1)).mappings().one())
        ended = {"status": "succeeded", "finished_at": clock()}
        rows = [pattern | ended | {"id": f"job_0{i:05}", "idempotency_key": f"k{i}"} for i in range(JOBS)]
        connection.execute(insert(table_of(Job)), rows)
        jobs_and_numbers = f"""
            (SELECT id FROM jobs WHERE status = 'succeeded') j CROSS JOIN (WITH RECURSIVE n(i) AS (
            SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {EVENTS_EACH}) SELECT i FROM n) numbers"""
        for statement in (
            "INSERT INTO events (job_id, seq, attempt, created_at, payload) "
            f"SELECT id, i, 1, '2026-01-01 00:00:00', '{{}}' FROM {jobs_and_numbers}",
            f"INSERT INTO metrics (job_id, step, name, value) SELECT id, i, 'a', 1.0 FROM {jobs_and_numbers}",
            f"INSERT INTO metric_ranges SELECT id, 4, i, 'a', 1, 1.0, 1, 1.0, 1, 1.0, 1, 1.0 FROM {jobs_and_numbers}",
        ):
            connection.execute(text(statement))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE"))
    return sessions


def table_of(mapped: Any) -> Table:
    table = mapped.__table__
    assert isinstance(table, Table)
    return table


def plans(engine: Engine, sessions: Sessions, ask: Callable[[Session], object]) -> list[str]:
    """A line for each node of the plan of each SELECT, UPDATE and DELETE that `ask` sends."""
    sent: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: bool) -> None:
        if statement.lstrip().upper().startswith(("SELECT", "UPDATE", "DELETE")):
            sent.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", note)
    try:
        with sessions() as session:
            ask(session)
            session.rollback()
    finally:
        event.remove(engine, "before_cursor_execute", note)
    explain = "EXPLAIN QUERY PLAN " if engine.dialect.name == "sqlite" else "EXPLAIN "
    lines = []
    with engine.connect() as connection:
        for statement, parameters in sent:
            lines += [str(row[-1]) for row in connection.exec_driver_sql(explain + statement, parameters)]
    assert lines
    return lines


ASKED: dict[str, Callable[[Session, datetime], object]] = {
    "list": lambda s, _: jobs.list_page(s, status=None, limit=100, after=None),
    "list after": lambda s, _: jobs.list_page(s, status=None, limit=100, after=JOB),
    "list by status": lambda s, _: jobs.list_page(s, status="queued", limit=100, after=JOB),
    "read": lambda s, _: jobs.get(s, JOB),
    "replay": lambda s, _: jobs.find_replay(s, key="k7", name="waits", config=make_config(), priority=0),
    "events page": lambda s, _: events.page(s, job_id=JOB, after=5, limit=5),
    "curves": lambda s, _: curves.read(s, job_id=JOB, names=None, max_points=4),
    "claim": lambda s, now: jobs.claim_next(s, worker="w", now=now),
    "stale": lambda s, now: job_sweeps.requeue_stale(s, now=now, lease_s=60),
    "unannounced": lambda s, now: job_sweeps.unannounced(s, now=now, older_than_s=10),
    "waiting": lambda s, _: job_sweeps.note_waiting(s, largest_bytes=2**30),
    "paused": lambda s, _: job_sweeps.waiting_for_space(s),
    "retention": lambda s, now: retention.untrimmed(s, before=now - timedelta(days=1), limit=100),
    "claim a comparison": lambda s, now: comparisons.claim_next(s, worker="w", now=now),
}


def test_no_table_is_scanned(engine: Engine, full: Sessions, clock: Clock) -> None:
    """Neither for what people and workers ask, nor for what the sweeper asks every few seconds."""
    bad = {}
    for name, ask in ASKED.items():
        found = plans(engine, full, lambda session, ask=ask: ask(session, clock()))  # type: ignore[misc]
        if scans := [line for line in found if SCAN.search(line)]:
            bad[name] = scans
    assert bad == {}


def test_a_scan_would_be_seen(engine: Engine, full: Sessions) -> None:
    """So that the test above can fail."""
    found = plans(engine, full, lambda session: session.scalars(select(Job).where(Job.name == "x")).all())
    assert any(SCAN.search(line) for line in found)
