"""What people may do with a job that is there: cancel, pause, resume, retry, clone and delete it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.core.db import jobs
from app.core.queue import RecordingQueue
from app.deps import Services
from tests.app.routes.descriptions import changed


def test_cancelling(client: TestClient, services: Services, job_id: str) -> None:
    with services.sessions.begin() as session:
        jobs.claim_next(session, worker="w", now=services.clock())
    asked = client.post(f"/v1/jobs/{job_id}/cancel")
    assert (asked.status_code, asked.json()["status"], asked.json()["cancel_requested"]) == (200, "running", True)
    with services.sessions.begin() as session:
        jobs.finish(session, job_id=job_id, attempt=1, status="cancelled", now=services.clock())
    again = client.post(f"/v1/jobs/{job_id}/cancel")
    assert (again.status_code, again.json()["code"]) == (409, "conflict")


def test_pausing_and_resuming(client: TestClient, queue: RecordingQueue, job_id: str) -> None:
    paused = client.post(f"/v1/jobs/{job_id}/pause")
    assert (paused.status_code, paused.json()["status"]) == (200, "paused")
    again = client.post(f"/v1/jobs/{job_id}/pause")
    assert (again.status_code, again.json()["code"]) == (409, "conflict")
    assert "is paused" in again.json()["detail"]
    queue.announced.clear()
    resumed = client.post(f"/v1/jobs/{job_id}/resume")
    assert (resumed.status_code, resumed.json()["status"]) == (200, "queued")
    assert queue.announced == [("stillhouse.train", job_id)]


@pytest.fixture
def failed_job(client: TestClient, services: Services, job_id: str) -> str:
    """A job that failed, with two checkpoints in the store."""
    with services.sessions.begin() as session:
        jobs.claim_next(session, worker="w", now=services.clock())
        outcome = {"status": "failed", "code": "hung", "message": "m"}
        jobs.finish(session, job_id=job_id, attempt=1, now=services.clock(), **outcome)
    for step in (50, 100):
        moment = {"phase": "training", "step": step, "training_events": step, "best_step": 50}
        folder = f"{jobs.checkpoints_key(job_id)}/1/step-{step:08d}"
        with services.store.open(f"{folder}/manifest.json", "wb") as file:
            file.write(json.dumps({"moment": moment, "files": {"weights": {"bytes": step}}}).encode())
    return job_id


def test_checkpoints_are_listed(client: TestClient, failed_job: str) -> None:
    found = client.get(f"/v1/jobs/{failed_job}/checkpoints").json()["data"]
    assert found == [
        {"step": 100, "phase": "training", "bytes": 100, "best": False, "model_id": f"{failed_job}@100"},
        {"step": 50, "phase": "training", "bytes": 50, "best": True, "model_id": f"{failed_job}@50"},
    ]


@pytest.mark.parametrize(("body", "kept"), [(None, 2), ({"from_checkpoint": True}, 2), ({"from_checkpoint": False}, 0)])
def test_retrying(
    client: TestClient, queue: RecordingQueue, failed_job: str, body: dict[str, bool] | None, kept: int
) -> None:
    queue.announced.clear()
    retried = client.post(f"/v1/jobs/{failed_job}/retry", json=body)
    assert (retried.status_code, retried.json()["status"], retried.json()["error"]) == (200, "queued", None)
    assert len(client.get(f"/v1/jobs/{failed_job}/checkpoints").json()["data"]) == kept
    assert queue.announced == [("stillhouse.train", failed_job)]
    again = client.post(f"/v1/jobs/{failed_job}/retry", json=body)
    assert (again.status_code, "is queued" in again.json()["detail"]) == (409, True)


def test_a_clone_is_the_same_job_with_changes(client: TestClient, queue: RecordingQueue, job_id: str) -> None:
    stored = client.get(f"/v1/jobs/{job_id}").json()
    queue.announced.clear()
    changes = {"name": "again", "config": {"training": {"max_steps": 9}, "student": {"layers": 1}}}
    answer = client.post(f"/v1/jobs/{job_id}/clone", json=changes, headers={"Idempotency-Key": "c"})
    assert answer.status_code == 201, answer.text
    clone = answer.json()
    expected = copy.deepcopy(stored["config"])
    expected["training"]["max_steps"], expected["student"]["layers"] = 9, 1
    assert (clone["config"], clone["name"], clone["max_steps"], clone["attempt"]) == (expected, "again", 9, 0)
    assert queue.announced == [("stillhouse.train", clone["id"])]
    replayed = client.post(f"/v1/jobs/{job_id}/clone", json=changes, headers={"Idempotency-Key": "c"})
    assert (replayed.status_code, replayed.json()["id"]) == (200, clone["id"])
    assert client.post(f"/v1/jobs/{job_id}/clone", json={}).json()["name"] == "tiny (copy)"


def test_a_clone_may_change_recipe_and_kinds(client: TestClient, job_id: str, tiny_student: Path) -> None:
    changes = {
        "recipe": "kd",
        "student": {"kind": "checkpoint", "model": str(tiny_student)},
        "training": {"max_steps": None},
    }
    clone = client.post(f"/v1/jobs/{job_id}/clone", json={"config": changes}).json()
    assert [loss["kind"] for loss in clone["config"]["losses"]] == ["forward_kl"]
    assert clone["config"]["student"] == changes["student"]
    assert clone["max_steps"] == 1000


@pytest.mark.parametrize(
    ("path", "value", "loc"),
    [
        ("student.layers", 99, ["config", "student", "layers"]),
        ("training.batch_size", 0, ["config", "training", "batch_size"]),
        ("sampling", {"kind": "psychic"}, ["config", "sampling", "kind"]),
        ("data.kind", "file", ["config", "data", "path"]),
    ],
)
def test_a_clone_is_checked_like_any_other_job(
    client: TestClient, job_id: str, path: str, value: Any, loc: list[str]
) -> None:
    answer = client.post(f"/v1/jobs/{job_id}/clone", json={"config": changed({}, path, value)})
    assert (answer.status_code, answer.json()["errors"][0]["loc"]) == (422, loc)
    assert len(client.get("/v1/jobs").json()["data"]) == 1


def test_deleting(client: TestClient, services: Services, failed_job: str) -> None:
    assert client.delete(f"/v1/jobs/{failed_job}").status_code == 204
    assert client.get(f"/v1/jobs/{failed_job}").status_code == 404
    assert services.store.files(jobs.checkpoints_key(failed_job)) == []


def test_a_job_that_will_run_is_not_deleted(client: TestClient, job_id: str) -> None:
    answer = client.delete(f"/v1/jobs/{job_id}")
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert "is queued; cancel it first" in answer.json()["detail"]
