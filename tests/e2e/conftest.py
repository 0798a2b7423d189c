"""One running service per back end, shared by a module's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.running_service import RunningService, running_service
from tests.services import fresh_database, redis_database


@pytest.fixture(scope="module", params=["embedded", pytest.param("postgres+redis", marks=pytest.mark.service)])
def house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """API, training worker and comparing worker: SQLite and a broker of files, or PostgreSQL and Redis."""
    home = tmp_path_factory.mktemp("home")
    if request.param == "embedded":
        with running_service(home, without=["ui"]) as running:
            yield running
    else:
        broker_url = redis_database()
        with (
            fresh_database() as database_url,
            running_service(home, without=["ui"], database_url=database_url, broker_url=broker_url) as running,
        ):
            yield running
