"""The two queries that every resource has: one row by id, and a page of the newest.

Knows that ids sort by age. Does not know any column but `id`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from app.core.db.tables import Batch, Comparison, Dataset, Job, Model
from app.core.errors import NotFound

T = TypeVar("T", Batch, Comparison, Dataset, Job, Model)


def get_row(session: Session, table: type[T], row_id: str, *, what: str) -> T:
    """The row as the database has it now, whatever the session remembers. Raises NotFound, which calls it `what`."""
    row = session.get(table, row_id, populate_existing=True)
    if row is None:
        raise NotFound(f"no {what} {row_id}")
    return row


def newest_first(
    session: Session, table: type[T], *conditions: ColumnElement[bool], limit: int, after: str | None
) -> tuple[Sequence[T], bool]:
    """At most `limit` rows that meet the conditions, continuing after the row with id `after`; the flag says whether
    more follow."""
    query = select(table).where(*conditions).order_by(table.id.desc()).limit(limit + 1)
    if after is not None:
        query = query.where(table.id < after)
    rows = session.scalars(query).all()
    return rows[:limit], len(rows) > limit
