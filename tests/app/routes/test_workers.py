"""Who works, over HTTP."""

from __future__ import annotations

from fastapi.testclient import TestClient

from app.core.db import workers
from app.core.db.workers import WorkerReport
from app.deps import Services
from tests.app.conftest import Clock


def test_workers_are_listed(client: TestClient, services: Services, clock: Clock) -> None:
    assert client.get("/v1/workers").json() == {"data": []}
    said = WorkerReport(
        name="training@a",
        queue="training",
        host="a",
        pid=1,
        device="cpu",
        memory_bytes=2**34,
        versions={"python": "3.11.2"},
        started_at=clock(),
    )
    with services.sessions.begin() as session:
        workers.report(session, said, now=clock())
    (listed,) = client.get("/v1/workers").json()["data"]
    assert (listed["name"], listed["status"], listed["memory_bytes"]) == ("training@a", "idle", 2**34)
    clock.advance(services.lease_s + 1)
    assert client.get("/v1/workers").json()["data"][0]["status"] == "lost"
