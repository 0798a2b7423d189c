"""The service under load: its real processes on either back end, and a tiny real model to train.

Knows how the two back ends are set up for a measurement. Does not measure. Uses what the tests use to start the
service, so that both see the same processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, make_url, text

from app.core.db.session import make_engine
from tests.running_service import RunningService, running_service
from tests.services import fresh_database, service_url

BACK_ENDS = ("sqlite + files", "postgresql + redis")
# A broker of the measurement's own: other programs on the same Redis use the first ones.
_REDIS_DATABASE = 13


@contextmanager
def open_house(back_end: str, home: Path, *, without: Sequence[str] = ("ui",)) -> Iterator[RunningService]:
    """The service without `without`, empty at first. `postgresql + redis` needs the servers of STILLHOUSE_TEST_*."""
    if back_end == BACK_ENDS[0]:
        with running_service(home, without=without) as house:
            yield house
        return
    broker = make_url(service_url("STILLHOUSE_TEST_BROKER_URL")).set(database=str(_REDIS_DATABASE))
    with (
        fresh_database() as database_url,
        running_service(
            home, without=without, database_url=database_url, broker_url=broker.render_as_string(hide_password=False)
        ) as house,
    ):
        yield house


def describe_database(house: RunningService) -> Mapping[str, str]:
    """Version and durability settings of the database, which a figure depends on."""
    engine = make_engine(house.settings.resolved_database_url)
    try:
        with engine.connect() as connection:
            if engine.dialect.name == "sqlite":
                return {
                    "version": f"SQLite {_one(connection, 'SELECT sqlite_version()')}",
                    "synchronous": "normal, WAL",
                }
            version = str(_one(connection, "SHOW server_version")).split()[0]
            return {"version": f"PostgreSQL {version}", "fsync": str(_one(connection, "SHOW fsync"))}
    finally:
        engine.dispose()


def _one(connection: Any, query: str) -> Any:
    return connection.execute(text(query)).scalar_one()


def engine_of(house: RunningService) -> Engine:
    return make_engine(house.settings.resolved_database_url)


def job_of(name: str, *, dataset_id: str, teacher: Path, steps: int) -> dict[str, Any]:
    """The body of POST /v1/jobs for a student of two layers of width 32."""
    return {
        "name": name,
        "config": {
            "teacher": {"model": str(teacher)},
            "student": {"kind": "from_teacher", "layers": 2},
            "data": {"kind": "dataset", "dataset_id": dataset_id, "dev_rows": 2, "max_response_tokens": 16},
            "sampling": {"kind": "adaptive_off_policy", "phi_start": 0.5, "max_new_tokens": 8},
            "training": {"max_steps": steps, "batch_size": 8},
            "evaluation": {"every_steps": 100_000, "rouge_rows": 1},
        },
    }
