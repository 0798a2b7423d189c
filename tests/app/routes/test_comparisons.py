"""Comparisons: asked over HTTP, announced, read back."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.core.queue import RecordingQueue


@pytest.fixture
def request_body(client: TestClient, job_id: str) -> dict[str, Any]:
    job = client.get(f"/v1/jobs/{job_id}").json()
    return {"model_ids": [job["teacher_id"], job["untrained_id"]], "messages": [{"role": "user", "content": "Hi"}]}


def test_a_comparison_is_queued_and_announced(
    client: TestClient, queue: RecordingQueue, request_body: dict[str, Any]
) -> None:
    answer = client.post("/v1/comparisons", json=request_body)
    assert answer.status_code == 201
    comparison = answer.json()
    assert (comparison["status"], comparison["answers"], comparison["error"]) == ("queued", [], None)
    assert comparison["request"]["max_new_tokens"] == 128
    assert queue.announced[-1] == ("stillhouse.compare", comparison["id"])
    assert client.get(f"/v1/comparisons/{comparison['id']}").json() == comparison


@pytest.mark.parametrize(
    ("changes", "loc"),
    [
        ({"model_ids": []}, ["model_ids"]),
        ({"model_ids": ["mdl_none"]}, ["model_ids", 0]),
        ({"messages": []}, ["messages"]),
        ({"messages": [{"role": "assistant", "content": "Hi"}]}, ["messages"]),
        ({"messages": [{"role": "user", "content": ""}]}, ["messages", 0, "content"]),
        ({"temperature": -1}, ["temperature"]),
        ({"seed": 2**64}, ["seed"]),
        ({"beam": 3}, ["beam"]),
    ],
)
def test_bad_requests_name_the_field(
    client: TestClient, queue: RecordingQueue, request_body: dict[str, Any], changes: dict[str, Any], loc: list[Any]
) -> None:
    answer = client.post("/v1/comparisons", json=request_body | changes)
    assert (answer.status_code, answer.json()["errors"][0]["loc"]) == (422, loc)
    assert not any(task == "stillhouse.compare" for task, _ in queue.announced)


def test_an_unknown_comparison_is_404(client: TestClient) -> None:
    assert client.get("/v1/comparisons/cmp_none").status_code == 404
