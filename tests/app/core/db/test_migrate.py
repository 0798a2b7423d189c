"""Migrations make exactly the tables that tables.py describes, once, however many processes start at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, inspect

from app.core.db import migrate
from app.core.db.session import make_engine
from app.core.db.tables import Base
from tests.app.conftest import at_once


@pytest.mark.filterwarnings("ignore:autogenerate skipping metadata-specified expression-based index")
def test_migrations_lead_to_the_described_tables(engine: Engine) -> None:
    with engine.connect() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), Base.metadata)
        indexes = inspect(connection).get_indexes("jobs")
    # SQLite does not tell about an index's descending column, so Alembic cannot compare that one there.
    assert [found for found in differences if found[1].name != "ix_jobs_claim"] == []
    assert {"ix_jobs_claim", "ix_jobs_status_id"} <= {index["name"] for index in indexes}


def test_a_database_knows_whether_it_is_current(engine: Engine, tmp_path: Path) -> None:
    assert migrate.is_current(engine)
    assert not migrate.is_current(make_engine(f"sqlite:///{tmp_path / 'new.db'}"))


def test_upgrading_twice_changes_nothing(database_url: str, engine: Engine) -> None:
    migrate.upgrade(database_url)
    assert migrate.is_current(engine)


@pytest.mark.parametrize("back_end", ["sqlite", pytest.param("postgresql", marks=pytest.mark.service)])
def test_simultaneous_upgrades(back_end: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = (
        f"sqlite:///{tmp_path / 'deep' / 'new.db'}" if back_end == "sqlite" else request.getfixturevalue("postgres_url")
    )
    at_once(lambda: migrate.upgrade(url), 3)
    assert migrate.is_current(make_engine(url))
