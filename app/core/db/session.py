"""Engine and sessions for SQLite and PostgreSQL.

Knows what each back end needs to be safe with several processes. Does not know tables or queries.
"""

from __future__ import annotations

import json
import re
import sqlite3
import time
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import ExceptionContext, make_url
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, sessionmaker

_BUSY_TIMEOUT_S = 30.0
# Every transaction of ours takes milliseconds; one that waits for its client so long has a client that is stopped.
_IDLE_TRANSACTION_S = 30.0
# The escape of a NUL character; an odd number of backslashes before it would make it plain text.
_NUL_IN_JSON = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")


def make_engine(url: str, *, idle_transaction_s: float = _IDLE_TRANSACTION_S) -> Engine:
    """An engine for `url` (SQLAlchemy form). Connects on first use; creates the parent folder of an SQLite file.

    PostgreSQL ends a transaction that asks nothing for `idle_transaction_s`: a machine that is suspended, or dies, in
    the middle of one would otherwise keep its locks, for hours or for ever, and with them the sweeper and everybody.
    """
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        if parsed.database and parsed.database != ":memory:":
            Path(parsed.database).expanduser().parent.mkdir(parents=True, exist_ok=True)
        engine = create_engine(parsed, json_serializer=_to_json, connect_args={"timeout": _BUSY_TIMEOUT_S})
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")  # psycopg 3 is the driver that is installed
    # pool_pre_ping: a restarted database server costs one ping, not one failed request per pooled connection.
    idle = f"-c idle_in_transaction_session_timeout={round(idle_transaction_s * 1000)}"
    given = str(parsed.query.get("options", ""))
    options = {"connect_timeout": 5, "options": f"{idle} {given}".strip()}
    engine = create_engine(parsed, json_serializer=_to_json, pool_pre_ping=True, connect_args=options)
    event.listen(engine, "handle_error", _one_kind_of_away, retval=True)
    return engine


def make_sessions(engine: Engine, *, read_only: bool = False) -> sessionmaker[Session]:
    """The one kind of session: sync, explicit `with sessions.begin() as session:`, rows usable after the commit.

    Those that are `read_only` never wait for who writes, nor does who writes for them; the database refuses their
    writes. They see what was committed when they first read.
    """
    if read_only:
        engine = engine.execution_options(read_only=True, postgresql_readonly=True)
    return sessionmaker(engine, expire_on_commit=False)


def _to_json(document: Any) -> str:
    """JSON with U+FFFD for NUL, which a model may well say and which no PostgreSQL text can hold."""
    return _NUL_IN_JSON.sub(r"\1\\ufffd", json.dumps(document))


def _one_kind_of_away(context: ExceptionContext) -> BaseException | None:
    """A connection that the server has ended is an OperationalError, as one that broke is. The driver calls the end of
    an idle transaction an internal error."""
    found = context.sqlalchemy_exception
    if found is None or isinstance(found, OperationalError) or not context.is_disconnect:
        return None
    return OperationalError(found.statement, found.params, context.original_exception, connection_invalidated=True)


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # SQLAlchemy sends BEGIN itself, below; the driver's own timing is too late
    _use_wal(connection)
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA foreign_keys=ON")


def _use_wal(connection: Any) -> None:
    """Switches the file to its write-ahead log. Several processes may open a new file at the same moment; all but one
    are then told that it is locked, at once, because SQLite's own timeout does not cover this switch."""
    deadline = time.monotonic() + _BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _begin_sqlite(connection: Connection) -> None:
    """Takes the write lock at once, unless the transaction only reads: one that reads first and writes later would
    otherwise fail with SQLITE_BUSY (which no timeout cures) whenever another process wrote in between."""
    read_only = connection.get_execution_options().get("read_only", False)
    connection.exec_driver_sql(f"PRAGMA query_only={read_only:d}")
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")
