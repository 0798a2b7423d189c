"""Brings a database to the newest schema, and says whether it is there.

Knows Alembic and where the migrations are. Does not read the environment: `migrations/env.py` does, for the
`alembic` program alone.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, text

from app.core.db.session import make_engine

_FOLDER = Path(__file__).parent / "migrations"
_LOCK_KEY = 0x571111  # any constant of our own; PostgreSQL's advisory locks are named by number


def upgrade(url: str) -> None:
    """Upgrades the database at `url` to the newest revision, in one transaction.

    Safe to call from several processes at once: SQLite's write lock, or an advisory lock, lets one pass at a time.
    """
    engine = make_engine(url)
    try:
        with engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
            config = _config()
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    finally:
        engine.dispose()


def is_current(engine: Engine) -> bool:
    """True when the database has the newest revision. Raises SQLAlchemy's OperationalError if it cannot be reached."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision() == head


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    return config
