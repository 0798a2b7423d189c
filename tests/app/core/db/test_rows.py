"""Rows are read as the database has them; pages are tested with each resource."""

from __future__ import annotations

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session, sessionmaker

from app.core.compare_schemas import ChatMessage, ComparisonIn
from app.core.db import comparisons
from app.core.db.rows import get_row
from app.core.db.tables import Comparison
from app.core.errors import NotFound
from tests.app.conftest import Clock


def test_a_row_is_read_again_although_the_session_has_it(sessions: sessionmaker[Session], clock: Clock) -> None:
    request = ComparisonIn(model_ids=["mdl_1"], messages=[ChatMessage(role="user", content="hi")])
    with sessions.begin() as session:
        row = comparisons.create(session, request=request, now=clock())
        statement = update(Comparison).values(status="running")
        session.execute(statement, execution_options={"synchronize_session": False})
        assert get_row(session, Comparison, row.id, what="comparison").status == "running"
        with pytest.raises(NotFound, match="no comparison cmp_none"):
            get_row(session, Comparison, "cmp_none", what="comparison")
