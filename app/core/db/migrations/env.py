"""Alembic's entry: uses the connection it was given, or else the database of `ServiceSettings` (a composition root).

To write a new revision after changing tables.py: `alembic revision --autogenerate -m "..."` with
STILLHOUSE_DATABASE_URL naming PostgreSQL (SQLite does not tell about an index's descending column, so Alembic would
make `ix_jobs_claim` anew each time).
"""

from __future__ import annotations

from typing import Any, Literal

from alembic import context
from sqlalchemy import JSON, Connection

from app.core.db.session import make_engine
from app.core.db.tables import Base, StoredText, UtcDateTime
from app.core.settings import ServiceSettings


def _render(kind: str, item: Any, autogenerate: Any) -> str | Literal[False]:
    """How a new revision spells our column types: a revision must not change when tables.py does."""
    if kind == "type" and isinstance(item, UtcDateTime):
        return "sa.DateTime(timezone=True)"
    if kind == "type" and isinstance(item, StoredText):
        return "sa.String()"
    if kind == "type" and isinstance(item, JSON):
        autogenerate.imports.add("from sqlalchemy.dialects import postgresql")
        return 'sa.JSON().with_variant(postgresql.JSONB(), "postgresql")'
    return False


def _run(connection: Connection) -> None:
    # SQLite cannot alter most things in place: batch mode copies the table instead.
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        render_item=_render,
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    _run(given)
else:
    with make_engine(ServiceSettings().resolved_database_url).begin() as opened:
        _run(opened)
