"""What makes the back ends safe: SQLite's lock is taken first, times stay aware."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError, OperationalError, StatementError
from sqlalchemy.orm import Session, sessionmaker

from app.core.db import datasets
from app.core.db.session import make_engine, make_sessions
from app.core.db.tables import Dataset
from tests.app.conftest import at_once

Sessions = sessionmaker[Session]


def test_reading_first_and_writing_later_never_fails(engine: Engine, tmp_path: Path) -> None:
    """With SQLite's deferred transactions this raises "database is locked" at once, whatever the timeout."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE counter (n INTEGER)"))
        connection.execute(text("INSERT INTO counter VALUES (0)"))
    locked = " FOR UPDATE" if engine.dialect.name == "postgresql" else ""

    def count() -> None:
        for _ in range(20):
            with engine.begin() as connection:
                n = connection.execute(text(f"SELECT n FROM counter{locked}")).scalar_one()
                connection.execute(text("UPDATE counter SET n = :n"), {"n": n + 1})

    at_once(count, 4)
    with engine.begin() as connection:
        assert connection.execute(text("SELECT n FROM counter")).scalar_one() == 80


@pytest.mark.service
def test_a_client_that_is_stopped_in_a_transaction_does_not_keep_its_locks(postgres_url: str) -> None:
    """What the stopped one gets, when it goes on, is the error of a database that went away."""
    stopped, other = make_engine(postgres_url, idle_transaction_s=0.5), make_engine(postgres_url)
    with stopped.begin() as connection:
        connection.execute(text("CREATE TABLE things (n INTEGER)"))
        connection.execute(text("INSERT INTO things VALUES (1)"))

    def be_stopped_meanwhile() -> None:
        with stopped.begin() as connection:
            connection.execute(text("UPDATE things SET n = 2"))
            with other.begin() as others:  # waits for the row, and not for long
                others.execute(text("SET LOCAL lock_timeout = '20s'"))
                others.execute(text("UPDATE things SET n = 3"))
            connection.execute(text("UPDATE things SET n = 4"))

    with pytest.raises(OperationalError, match="idle"):
        be_stopped_meanwhile()
    with stopped.begin() as connection:
        assert connection.execute(text("SELECT n FROM things")).scalar_one() == 3
    for engine in (stopped, other):
        engine.dispose()


def test_sqlite_is_prepared(tmp_path: Path) -> None:
    with make_engine(f"sqlite:///{tmp_path / 'a' / 'b.db'}").connect() as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "foreign_keys")
        }
    assert pragmas == {"journal_mode": "wal", "foreign_keys": 1}


def test_a_new_sqlite_file_may_be_opened_by_many_at_once(tmp_path: Path) -> None:
    """SQLite answers "database is locked" without waiting to all but one that switch a new file to its log."""

    def open_and_read(name: str) -> None:
        engine = make_engine(f"sqlite:///{tmp_path / name}")
        with engine.begin() as connection:
            connection.execute(text("SELECT 1"))
        engine.dispose()

    for number in range(60):
        at_once(partial(open_and_read, f"{number}.db"), 8)


def test_postgresql_urls_name_the_installed_driver() -> None:
    assert make_engine("postgresql://u@h/d").dialect.driver == "psycopg"


def test_times_are_utc_on_every_back_end(sessions: Sessions) -> None:
    elsewhere = datetime(2026, 7, 1, 12, 0, 0, 5, tzinfo=timezone(timedelta(hours=2)))
    with sessions.begin() as session:
        session.add(_dataset("ds_1", elsewhere))
    with sessions.begin() as session:
        read = datasets.get(session, "ds_1").created_at
    assert read == elsewhere
    assert read.tzinfo is UTC


def test_naive_times_are_refused(sessions: Sessions) -> None:
    naive = datetime(2026, 7, 1)
    with pytest.raises((StatementError, ValueError), match="naive"), sessions.begin() as session:
        session.add(_dataset("ds_1", naive))


def _dataset(dataset_id: str, created_at: datetime) -> Dataset:
    return Dataset(
        id=dataset_id,
        name="n",
        format="prompt",
        rows=1,
        rows_with_response=0,
        problems=[],
        sha256="",
        created_at=created_at,
    )


def test_readers_and_writers_do_not_wait_for_each_other(engine: Engine, sessions: Sessions) -> None:
    """Each transaction is open while the other one runs: with SQLite's write lock for both, this would time out."""
    with sessions.begin() as session:
        session.execute(text("CREATE TABLE counter (n INTEGER)"))
        session.execute(text("INSERT INTO counter VALUES (0)"))
    count = text("SELECT n FROM counter")
    readers = make_sessions(engine, read_only=True)
    with readers.begin() as early:
        assert early.scalar(count) == 0
        with sessions.begin() as writer:
            writer.execute(text("UPDATE counter SET n = 1"))
            with readers.begin() as during:
                assert during.scalar(count) == 0
        with readers.begin() as late:
            assert late.scalar(count) == 1


def test_readers_cannot_write_and_writers_still_can(engine: Engine, sessions: Sessions) -> None:
    """All share one pool: what a connection was told for a reader must not stay with it."""
    with sessions.begin() as session:
        session.execute(text("CREATE TABLE counter (n INTEGER)"))
    readers = make_sessions(engine, read_only=True)
    for _ in range(3):
        with pytest.raises(DBAPIError), readers.begin() as session:
            session.execute(text("INSERT INTO counter VALUES (1)"))
        with sessions.begin() as session:
            session.execute(text("INSERT INTO counter VALUES (1)"))
    with readers.begin() as session:
        assert session.scalar(text("SELECT count(*) FROM counter")) == 3
