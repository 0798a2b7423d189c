"""Batches over HTTP: queued, read, ordered, exported; what is wrong with a request is named."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.core.compare_schemas import Answer, RowScore
from app.core.db import comparisons
from app.core.queue import RecordingQueue
from app.deps import Services
from app.main import create_app


@pytest.fixture
def body(client: TestClient, job_id: str, dataset_id: str) -> dict[str, Any]:
    job = client.get(f"/v1/jobs/{job_id}").json()
    return {"dataset_id": dataset_id, "model_ids": [job["teacher_id"], job["untrained_id"]], "limit": 3}


def answer_next(services: Services, text: str, *, kl: float, rouge_l: float) -> None:
    with services.sessions.begin() as session:
        claim = comparisons.claim_next(session, worker="w", now=services.clock())
        assert claim is not None
        teacher, student = claim.request["model_ids"]
        scores = [
            RowScore(model_id=teacher, rouge_l=0.9, kl=None, tokens=2),
            RowScore(model_id=student, rouge_l=rouge_l, kl=kl, tokens=2),
        ]
        comparisons.finish(
            session,
            comparison_id=claim.comparison_id,
            attempt=claim.attempt,
            now=services.clock(),
            answers=[
                Answer(
                    model_id=one,
                    text=text,
                    tokens=2,
                    seconds=1.0,
                    tokens_per_s=2.0,
                    finished=True,
                    parameters=1,
                    weights_sha256="ab",
                    finish="stop",
                )
                for one in (teacher, student)
            ],
            result={**claim.result, "scores": [score.model_dump() for score in scores]},
        )


def test_a_batch_is_queued_and_announced_once(client: TestClient, queue: RecordingQueue, body: dict[str, Any]) -> None:
    rung = len(queue.announced)
    batch = client.post("/v1/batches", json=body)
    assert batch.status_code == 201
    assert (batch.json()["status"], batch.json()["rows"], batch.json()["done"]) == ("queued", 3, 0)
    assert len(queue.announced) == rung + 1
    rows = client.get(f"/v1/batches/{batch.json()['id']}/rows").json()["data"]
    assert [(row["row"], row["prompt"], row["reference"]) for row in rows] == [
        (i, f"question {i - 1}", f"answer {i - 1}") for i in (1, 2, 3)
    ]
    assert client.get("/v1/batches").json()["data"] == [client.get(f"/v1/batches/{batch.json()['id']}").json()]
    assert client.get("/v1/comparisons").json()["data"] == []


@pytest.mark.parametrize(
    ("changes", "loc"),
    [
        ({"dataset_id": "ds_none"}, ["dataset_id"]),
        ({"model_ids": ["mdl_none"]}, ["model_ids", 0]),
        ({"limit": 0}, ["limit"]),
        ({"judge": True}, ["judge"]),
        ({"temperature": -1}, ["temperature"]),
    ],
    ids=str,
)
def test_bad_requests_name_the_field(
    client: TestClient, body: dict[str, Any], changes: dict[str, Any], loc: list[Any]
) -> None:
    answer = client.post("/v1/batches", json=body | changes)
    assert (answer.status_code, answer.json()["errors"][0]["loc"]) == (422, loc)


def test_a_service_with_a_judge_takes_judged_batches(services: Services, body: dict[str, Any]) -> None:
    with TestClient(create_app(services=dataclasses.replace(services, has_judge=True))) as client:
        assert client.post("/v1/batches", json=body | {"judge": True}).status_code == 201
        alone = client.post("/v1/batches", json=body | {"judge": True, "model_ids": body["model_ids"][:1]})
        assert alone.json()["errors"][0]["loc"] == ["model_ids"]


def test_rows_are_ordered_by_the_students_worst(client: TestClient, services: Services, body: dict[str, Any]) -> None:
    batch_id = client.post("/v1/batches", json=body).json()["id"]
    answer_next(services, "x", kl=1.0, rouge_l=0.1)
    answer_next(services, "x", kl=2.0, rouge_l=0.2)

    def order(sort: str) -> list[int]:
        return [row["row"] for row in client.get(f"/v1/batches/{batch_id}/rows", params={"sort": sort}).json()["data"]]

    assert (order("row"), order("kl"), order("rouge_l")) == ([1, 2, 3], [2, 1, 3], [1, 2, 3])
    page = client.get(f"/v1/batches/{batch_id}/rows", params={"sort": "kl", "offset": 1, "limit": 1}).json()
    assert ([row["row"] for row in page["data"]], page["has_more"]) == ([1], True)


def test_exports_hold_every_answer_and_no_formula(client: TestClient, services: Services, body: dict[str, Any]) -> None:
    batch_id = client.post("/v1/batches", json=body).json()["id"]
    hostile = '=HYPERLINK("http://x")\n"quoted", 🦙'
    answer_next(services, hostile, kl=1.0, rouge_l=0.5)
    answer = client.get(f"/v1/batches/{batch_id}/export", params={"format": "csv"})
    assert "attachment" in answer.headers["content-disposition"]
    lines = list(csv.DictReader(io.StringIO(answer.text)))
    assert [line["answer"] for line in lines] == ["'" + hostile] * 2
    assert [line["kl"] for line in lines] == ["", "1.0"]
    rows = [json.loads(line) for line in client.get(f"/v1/batches/{batch_id}/export").text.splitlines()]
    assert [row["status"] for row in rows] == ["succeeded", "queued", "queued"]
    assert rows[0]["answers"][0]["text"] == hostile


def test_cancelling_and_unknown_batches(client: TestClient, body: dict[str, Any]) -> None:
    batch_id = client.post("/v1/batches", json=body).json()["id"]
    assert client.post(f"/v1/batches/{batch_id}/cancel").json()["status"] == "cancelled"
    assert client.post(f"/v1/batches/{batch_id}/cancel").status_code == 409
    for path in ("", "/rows", "/export"):
        assert client.get(f"/v1/batches/bat_none{path}").status_code == 404
