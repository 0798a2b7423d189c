"""Jobs, events and curves written straight into the database, as many as a service has after years.

Knows the tables and each back end's fast way in. Copies a job that the API itself stored, so that its row is real.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Engine, Table, insert, select, text

from app.core.db import curves
from app.core.db.session import make_sessions
from app.core.db.tables import EventRow, Job, Metric
from app.core.ids import new_id

CURVES = tuple(f"{group}/m{i}" for group in ("loss", "train", "scrg", "time") for i in range(5))
_ENDS = ("succeeded", "succeeded", "succeeded", "failed", "cancelled")
_START = datetime(2026, 1, 1, tzinfo=UTC)
_STEPS_PER_TRANSACTION = 1000


@dataclass(frozen=True, kw_only=True)
class Filled:
    """`long_job` has `long_steps` steps, each an event with 20 metrics; the events of the others are spread evenly."""

    jobs: int
    events: int
    long_job: str
    long_steps: int
    some_jobs: Sequence[str]


def fill(engine: Engine, *, jobs: int, events: int, long_steps: int, seed: int = 0) -> Filled:
    """Adds so many ended jobs, so many events in all, and one long job's curves."""
    chance = random.Random(seed)
    ids = sorted(new_id("job") for _ in range(jobs))
    long_job = ids[len(ids) // 2]
    each, left = divmod(events - long_steps, jobs - 1)
    sizes = {job_id: each + (i < left) for i, job_id in enumerate(job_id for job_id in ids if job_id != long_job)}
    sizes[long_job] = long_steps
    _insert_jobs(engine, ids, sizes, chance)
    _bulk(engine, _table(EventRow), (row for job_id in ids for row in _events(job_id, sizes[job_id], chance)))
    _store_curves(engine, long_job, long_steps, chance)
    _settle(engine)
    return Filled(
        jobs=jobs, events=events, long_job=long_job, long_steps=long_steps, some_jobs=chance.sample(ids, min(500, jobs))
    )


def _table(mapped: Any) -> Table:
    table = mapped.__table__
    assert isinstance(table, Table)
    return table


def _insert_jobs(engine: Engine, ids: Sequence[str], sizes: dict[str, int], chance: random.Random) -> None:
    table = _table(Job)
    with engine.begin() as connection:
        pattern = dict(connection.execute(select(table).limit(1)).mappings().one())
        for start in range(0, len(ids), 5000):
            rows = []
            for i, job_id in enumerate(ids[start : start + 5000], start=start):
                created = _START + timedelta(seconds=i)
                rows.append(
                    pattern
                    | {
                        "id": job_id,
                        "name": f"filled {i}",
                        "status": chance.choice(_ENDS),
                        "idempotency_key": None,
                        "attempt": 1,
                        "last_seq": sizes[job_id],
                        "created_at": created,
                        "queued_at": created,
                        "started_at": created,
                        "finished_at": created + timedelta(hours=1),
                    }
                )
            connection.execute(insert(table), rows)


def _events(job_id: str, count: int, chance: random.Random) -> Iterator[tuple[Any, ...]]:
    metrics = {name: round(chance.gauss(2, 1), 6) for name in CURVES[:10]}
    for seq in range(1, count + 1):
        payload = {
            "kind": "step",
            "step": seq,
            "max_steps": count,
            "source": "fresh",
            "tokens": 512,
            "tokens_per_s": 1234.5,
            "eta_s": 60.0,
            "metrics": metrics,
        }
        told_at = _START + timedelta(seconds=seq)
        yield job_id, seq, 1, told_at.strftime("%Y-%m-%d %H:%M:%S.%f"), json.dumps(payload)


def _bulk(engine: Engine, table: Table, rows: Iterator[tuple[Any, ...]]) -> None:
    """SQLite: one prepared statement. PostgreSQL: COPY."""
    names = [column.name for column in table.columns]
    raw = engine.raw_connection()
    try:
        cursor = raw.cursor()
        if engine.dialect.name == "sqlite":
            places = ", ".join("?" * len(names))
            cursor.execute("BEGIN IMMEDIATE")
            cursor.executemany(f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({places})", rows)
        else:
            with cursor.copy(f"COPY {table.name} ({', '.join(names)}) FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)
        raw.commit()
    finally:
        raw.close()


def _store_curves(engine: Engine, job_id: str, steps: int, chance: random.Random) -> None:
    """Points in bulk, and their ranges as the recorder has them computed."""
    points = ((job_id, step, name, chance.random()) for step in range(1, steps + 1) for name in CURVES)
    _bulk(engine, _table(Metric), points)
    sessions = make_sessions(engine)
    for start in range(1, steps + 1, _STEPS_PER_TRANSACTION):
        batch = range(start, min(start + _STEPS_PER_TRANSACTION, steps + 1))
        with sessions.begin() as session:
            curves.fill_ranges(session, job_id, batch, newest=steps)


def _settle(engine: Engine) -> None:
    """What PostgreSQL's autovacuum and SQLite's checkpoints would do in the following minutes."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("VACUUM ANALYZE"))
    if engine.dialect.name == "sqlite":
        raw = engine.raw_connection()
        raw.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        raw.close()
