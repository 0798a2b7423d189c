"""Outside services for tests: where they are, and what is said when they are not there.

Knows the STILLHOUSE_TEST_* and STILLHOUSE_REQUIRE_* variables. Does not start anything (`.ci/run` does).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
import sqlalchemy as sa


@contextmanager
def fresh_database() -> Iterator[str]:
    """URL of an empty database of the caller's own, on the server of STILLHOUSE_TEST_DATABASE_URL."""
    server = sa.make_url(service_url("STILLHOUSE_TEST_DATABASE_URL"))
    name = f"stillhouse_test_{uuid4().hex}"
    engine = sa.create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
        try:
            yield server.set(database=name).render_as_string(hide_password=False)
        finally:
            connection.execute(sa.text(f"DROP DATABASE {name} WITH (FORCE)"))
    engine.dispose()


def redis_database() -> str:
    """URL of a database on the Redis of STILLHOUSE_TEST_BROKER_URL that no other test process uses.

    Test processes side by side (pytest-xdist's gw0, gw1, ...) would otherwise take each other's messages.
    """
    url = urlsplit(service_url("STILLHOUSE_TEST_BROKER_URL"))
    first = int(url.path.strip("/") or 0)
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return url._replace(path=f"/{first + number}").geturl()


def service_url(variable: str) -> str:
    url = os.environ.get(variable, "")
    if not url:
        absent(f"{variable} is not set", required_by="STILLHOUSE_REQUIRE_SERVICES")
    return url


def absent(reason: str, *, required_by: str) -> NoReturn:
    """Skips the test, or fails it when the variable `required_by` is 1."""
    if os.environ.get(required_by) == "1":
        pytest.fail(f"{reason}, and {required_by}=1")
    pytest.skip(reason)
