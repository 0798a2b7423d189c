"""Liveness, and readiness part by part."""

from __future__ import annotations

from pathlib import Path

from fastapi.testclient import TestClient
from sqlalchemy import text

from app.core.queue import RecordingQueue
from app.deps import Services


def test_alive_and_ready(client: TestClient) -> None:
    assert client.get("/healthz").json() == {"status": "ok", "checks": {}}
    answer = client.get("/readyz")
    assert answer.status_code == 200
    assert answer.json() == {"status": "ok", "checks": {"database": "ok", "broker": "ok", "storage": "ok"}}


def test_a_broker_that_is_away(client: TestClient, queue: RecordingQueue) -> None:
    queue.fail = True
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (503, "unavailable")
    assert answer.json()["checks"] == {
        "database": "ok",
        "broker": "ConnectionError: the broker is away",
        "storage": "ok",
    }
    assert client.get("/healthz").status_code == 200


def test_a_database_that_was_not_migrated(client: TestClient, services: Services) -> None:
    with services.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0000'"))
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert "stillhouse migrate" in answer.json()["checks"]["database"]


def test_a_store_that_cannot_be_written(client: TestClient, tmp_path: Path) -> None:
    (tmp_path / "artifacts").write_text("a file where the folder should be")
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["checks"]["storage"] != "ok"
