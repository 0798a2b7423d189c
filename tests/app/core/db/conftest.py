"""A desk on each back end."""

from __future__ import annotations

import pytest
from sqlalchemy.orm import Session, sessionmaker

from tests.app.conftest import Clock
from tests.app.core.db.desk import Desk


@pytest.fixture
def desk(sessions: sessionmaker[Session], clock: Clock) -> Desk:
    return Desk(sessions, clock)
