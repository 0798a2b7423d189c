"""Queries on data sets. Knows rows of the `datasets` table; the data itself is the artifact `storage_key(id)`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from app.core.db.rows import get_row, newest_first
from app.core.db.tables import Dataset
from app.core.schemas import DatasetOut, RowProblem


def storage_key(dataset_id: str) -> str:
    """Where the canonical rows are in the artifact store."""
    return f"datasets/{dataset_id}.jsonl"


def create(
    session: Session,
    *,
    dataset_id: str,
    name: str,
    format: str,
    rows: int,
    rows_with_response: int,
    problems: Sequence[RowProblem],
    sha256: str,
    now: datetime,
) -> Dataset:
    """A row for rows that are stored already: the id is the caller's, because the artifact's key needs it first."""
    dataset = Dataset(
        id=dataset_id,
        name=name,
        format=format,
        rows=rows,
        rows_with_response=rows_with_response,
        problems=[problem.model_dump(mode="json") for problem in problems],
        sha256=sha256,
        created_at=now,
    )
    session.add(dataset)
    session.flush()
    return dataset


def get(session: Session, dataset_id: str) -> Dataset:
    """Raises NotFound."""
    return get_row(session, Dataset, dataset_id, what="data set")


def as_shape(dataset: Dataset) -> DatasetOut:
    return DatasetOut.model_validate(dataset, from_attributes=True)


def list_page(session: Session, *, limit: int, after: str | None) -> tuple[Sequence[Dataset], bool]:
    """Newest first, at most `limit`, continuing after the data set `after`; the flag says whether more follow."""
    return newest_first(session, Dataset, limit=limit, after=after)
