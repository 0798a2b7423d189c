"""Data set rows: stored, read, paged."""

from __future__ import annotations

import pytest
from sqlalchemy.orm import Session, sessionmaker

from app.core.db import datasets
from app.core.errors import NotFound
from app.core.ids import new_id
from app.core.schemas import RowProblem
from tests.app.conftest import Clock

Sessions = sessionmaker[Session]


def create(session: Session, clock: Clock) -> str:
    return datasets.create(
        session,
        dataset_id=new_id("ds"),
        name="n",
        format="prompt",
        rows=3,
        rows_with_response=0,
        problems=[RowProblem(row=2, message="no")],
        sha256="ab",
        now=clock(),
    ).id


def test_a_data_set_comes_back_as_it_was_stored(sessions: Sessions, clock: Clock) -> None:
    with sessions.begin() as session:
        dataset_id = create(session, clock)
    with sessions.begin() as session:
        shape = datasets.as_shape(datasets.get(session, dataset_id))
    assert (shape.id, shape.format, shape.rows, shape.created_at) == (dataset_id, "prompt", 3, clock())
    assert list(shape.problems) == [RowProblem(row=2, message="no")]


def test_pages_and_unknown_ids(sessions: Sessions, clock: Clock) -> None:
    with sessions.begin() as session:
        ids = sorted((create(session, clock) for _ in range(3)), reverse=True)
        first, more = datasets.list_page(session, limit=2, after=None)
        rest, no_more = datasets.list_page(session, limit=2, after=first[-1].id)
        assert ([row.id for row in [*first, *rest]], more, no_more) == (ids, True, False)
        with pytest.raises(NotFound):
            datasets.get(session, "ds_none")
