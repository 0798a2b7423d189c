"""A checkpoint is taken wherever models are asked, and kept from whoever would remove it meanwhile."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.core.db import jobs
from app.deps import Services
from tests.app.routes.conftest import dataset_id, description, job_id  # noqa: F401 - fixtures

HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def ended(client: TestClient, services: Services, job_id: str) -> str:  # noqa: F811
    """A failed job with a checkpoint of step 20."""
    with services.sessions.begin() as session:
        jobs.claim_next(session, worker="w", now=services.clock())
        jobs.finish(session, job_id=job_id, attempt=1, now=services.clock(), status="failed", code="hung", message="m")
    moment = {"phase": "training", "step": 20, "training_events": 20, "best_step": None}
    with services.store.open(f"{jobs.checkpoints_key(job_id)}/1/step-00000020/manifest.json", "w") as file:
        file.write(json.dumps({"moment": moment, "files": {}}))
    return job_id


def teacher_of(client: TestClient, job: str) -> str:
    return str(client.get(f"/v1/jobs/{job}").json()["teacher_id"])


def test_a_checkpoint_is_asked_like_a_model(client: TestClient, ended: str) -> None:
    pane = client.get(f"/v1/jobs/{ended}/checkpoints").json()["data"][0]["model_id"]
    ids = [teacher_of(client, ended), pane]
    made = client.post("/v1/comparisons", json={"model_ids": ids, "messages": HI})
    assert (made.status_code, made.json()["request"]["model_ids"]) == (201, ids)
    blind = client.post("/v1/comparisons", json={"model_ids": ids, "messages": HI, "blind": True})
    assert blind.status_code == 201
    assert pane not in blind.text
    dataset = client.get("/v1/datasets").json()["data"][0]["id"]
    batch = client.post("/v1/batches", json={"model_ids": ids, "dataset_id": dataset, "limit": 1})
    assert (batch.status_code, batch.json()["request"]["model_ids"]) == (201, ids)


@pytest.mark.parametrize(
    ("step", "said"), [("40", "it has those of steps 20"), ("x", "no model"), ("20.5", "no model")]
)
def test_one_that_is_not_there_is_refused_at_its_field(client: TestClient, ended: str, step: str, said: str) -> None:
    ids = [teacher_of(client, ended), f"{ended}@{step}"]
    dataset = client.get("/v1/datasets").json()["data"][0]["id"]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/comparisons": {"model_ids": ids, "messages": HI},
        "/v1/batches": {"model_ids": ids, "dataset_id": dataset},
    }
    for path, body in bodies.items():
        problem = client.post(path, json=body)
        (error,) = problem.json()["errors"]
        assert (problem.status_code, error["loc"]) == (422, ["model_ids", 1])
        assert said in error["msg"]
    chat = client.post("/v1/chat/completions", json={"model": ids[1], "messages": HI})
    assert (chat.status_code, said in chat.json()["error"]["message"]) == (404, True)


def test_a_job_that_is_gone_is_refused_too(client: TestClient, ended: str) -> None:
    problem = client.post("/v1/comparisons", json={"model_ids": ["job_none@20"], "messages": HI})
    assert (problem.status_code, problem.json()["errors"][0]["loc"]) == (422, ["model_ids", 0])


def test_what_somebody_is_asking_is_not_removed_under_them(client: TestClient, ended: str) -> None:
    ids = [teacher_of(client, ended), f"{ended}@20"]
    asked = client.post("/v1/comparisons", json={"model_ids": ids, "messages": HI}).json()["id"]
    anew = client.post(f"/v1/jobs/{ended}/retry", json={"from_checkpoint": False})
    deleted = client.delete(f"/v1/jobs/{ended}")
    for refused in (anew, deleted):
        assert (refused.status_code, asked in refused.json()["detail"]) == (409, True)
    assert len(client.get(f"/v1/jobs/{ended}/checkpoints").json()["data"]) == 1
    client.post(f"/v1/comparisons/{asked}/cancel")
    assert client.delete(f"/v1/jobs/{ended}").status_code == 204
