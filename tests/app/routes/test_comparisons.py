"""Comparisons: asked over HTTP, announced, read back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.core.compare_schemas import Answer
from app.core.db import comparisons
from app.core.queue import RecordingQueue
from app.deps import Services


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


def test_blind_comparisons_are_of_two_and_start_anew(client: TestClient, request_body: dict[str, Any]) -> None:
    one, two = request_body["model_ids"]
    for changes, loc in (
        ({"model_ids": [one]}, ["model_ids"]),
        ({"model_ids": [one, one]}, ["model_ids"]),
        ({"previous_id": "cmp_1"}, ["blind"]),
    ):
        answer = client.post("/v1/comparisons", json=request_body | {"blind": True} | changes)
        assert (answer.status_code, answer.json()["errors"][0]["loc"]) == (422, loc)
    made = client.post("/v1/comparisons", json=request_body | {"blind": True})
    assert made.status_code == 201
    for shown in (made, client.get(f"/v1/comparisons/{made.json()['id']}"), client.get("/v1/comparisons")):
        assert one not in shown.text
        assert two not in shown.text


def answered(client: TestClient, services: Services, body: dict[str, Any]) -> str:
    """The id of a comparison that a worker would have answered."""
    made = client.post("/v1/comparisons", json=body).json()["id"]
    with services.sessions.begin() as session:
        claim = comparisons.claim_next(session, worker="w", now=services.clock())
        assert claim is not None
        answers = [
            Answer(
                model_id=one,
                text="said",
                tokens=2,
                seconds=1.0,
                tokens_per_s=2.0,
                finished=True,
                parameters=1,
                weights_sha256="ab",
                finish="stop",
            )
            for one in claim.request["model_ids"]
        ]
        ids = {answer.model_id: [1, 2] for answer in answers}
        comparisons.finish(
            session,
            comparison_id=made,
            attempt=claim.attempt,
            now=services.clock(),
            answers=answers,
            token_ids=ids,
        )
    return str(made)


def test_a_vote_over_http(client: TestClient, services: Services, request_body: dict[str, Any]) -> None:
    made = answered(client, services, request_body | {"blind": True})
    assert client.post(f"/v1/comparisons/{made}/vote", json={"choice": "c"}).status_code == 422
    told = client.post(f"/v1/comparisons/{made}/vote", json={"choice": "a"}).json()
    assert sorted(told["request"]["model_ids"]) == sorted(request_body["model_ids"])
    assert client.post(f"/v1/comparisons/{made}/vote", json={"choice": "a"}).status_code == 409
    (pair,) = client.get("/v1/votes/summary").json()["data"]
    assert pair["wins_a"] + pair["wins_b"] == 1
    winner = told["request"]["model_ids"][0]
    assert pair["wins_a" if pair["model_a"] == winner else "wins_b"] == 1


def test_a_stop_over_http(client: TestClient, services: Services, request_body: dict[str, Any]) -> None:
    made = client.post("/v1/comparisons", json=request_body).json()["id"]
    assert client.post(f"/v1/comparisons/{made}/cancel").json()["status"] == "cancelled"
    assert client.post(f"/v1/comparisons/{made}/cancel").status_code == 409
    assert client.post("/v1/comparisons/cmp_none/cancel").status_code == 404


def test_a_later_turn_over_http(client: TestClient, services: Services, request_body: dict[str, Any]) -> None:
    first = answered(client, services, request_body)
    later = client.post("/v1/comparisons", json=request_body | {"previous_id": first}).json()
    assert [turn["content"] for turn in later["history"][request_body["model_ids"][0]]] == ["Hi", "said"]
    system = {"role": "system", "content": "Be brief."}
    refused = request_body | {"previous_id": first, "messages": [system, *request_body["messages"]]}
    assert client.post("/v1/comparisons", json=refused).json()["errors"][0]["loc"] == ["messages"]
    assert client.post("/v1/comparisons", json=request_body | {"previous_id": "cmp_none"}).status_code == 404
    assert client.post("/v1/comparisons", json=request_body | {"previous_id": later["id"]}).status_code == 409


def test_a_reading_is_asked_for_over_http(
    client: TestClient, services: Services, queue: RecordingQueue, request_body: dict[str, Any]
) -> None:
    made = answered(client, services, request_body)
    teacher, student = request_body["model_ids"]
    wanted = {"of": student, "teacher_id": teacher, "student_id": student}
    asked = client.post(f"/v1/comparisons/{made}/divergence", json=wanted).json()
    assert (asked["status"], asked["result"]) == ("queued", None)
    assert queue.announced[-1] == ("stillhouse.compare", asked["id"])
    rung = len(queue.announced)
    assert client.post(f"/v1/comparisons/{made}/divergence", json=wanted).json() == asked
    assert len(queue.announced) == rung
    assert client.get(f"/v1/divergences/{asked['id']}").json() == asked
    unknown = client.post(f"/v1/comparisons/{made}/divergence", json=wanted | {"student_id": "mdl_none"})
    assert unknown.json()["errors"][0]["loc"] == ["student_id"]
    assert client.get(f"/v1/comparisons/{asked['id']}").status_code == 404


def test_the_stream_sends_every_state_until_the_end(
    client: TestClient, services: Services, request_body: dict[str, Any]
) -> None:
    made = answered(client, services, request_body)
    with client.stream("GET", f"/v1/comparisons/{made}", headers={"Accept": "text/event-stream"}) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        events = [json.loads(line.removeprefix("data: ")) for line in stream.iter_lines() if line.startswith("data: ")]
    assert [event["status"] for event in events] == ["succeeded"]
    assert client.get("/v1/comparisons/cmp_none", headers={"Accept": "text/event-stream"}).status_code == 404


def test_pages_of_what_was_asked(client: TestClient, request_body: dict[str, Any]) -> None:
    made = [client.post("/v1/comparisons", json=request_body).json()["id"] for _ in range(3)]
    page = client.get("/v1/comparisons", params={"limit": 2}).json()
    assert page["has_more"]
    rest = client.get("/v1/comparisons", params={"after": page["data"][-1]["id"]}).json()
    assert sorted(line["id"] for line in [*page["data"], *rest["data"]]) == sorted(made)
