"""Models over HTTP."""

from __future__ import annotations

from fastapi.testclient import TestClient


def test_models_of_a_job(client: TestClient, job_id: str) -> None:
    every = client.get("/v1/models").json()["data"]
    assert sorted(model["kind"] for model in every) == ["teacher", "untrained"]
    mine = client.get("/v1/models", params={"job_id": job_id}).json()["data"]
    assert [model["kind"] for model in mine] == ["untrained"]
    teachers = client.get("/v1/models", params={"kind": "teacher"}).json()["data"]
    assert client.get(f"/v1/models/{teachers[0]['id']}").json() == teachers[0]


def test_unknown_models_and_kinds(client: TestClient) -> None:
    assert client.get("/v1/models/mdl_none").status_code == 404
    assert client.get("/v1/models", params={"kind": "parrot"}).status_code == 422
