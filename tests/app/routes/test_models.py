"""Models over HTTP."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from app import archive
from app.core.db import models
from app.core.ids import new_id
from app.deps import Services


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


@pytest.fixture
def student_id(services: Services, job_id: str, tiny_student: Path) -> str:
    """A stored student of the job, which has ended."""
    model_id = new_id("mdl")
    services.store.put_folder(tiny_student, models.storage_key(model_id))
    with services.sessions.begin() as session:
        models.create_student(
            session,
            model_id=model_id,
            job_id=job_id,
            name="n",
            parameters=5,
            weights_sha256="ab",
            card={},
            now=services.clock(),
        )
    return model_id


def test_a_student_is_downloaded_as_its_folder(client: TestClient, student_id: str, tiny_student: Path) -> None:
    answer = client.get(f"/v1/models/{student_id}/archive")
    assert answer.headers["content-disposition"] == f'attachment; filename="{student_id}.tar"'
    assert len(answer.content) == int(answer.headers["content-length"])
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as opened:
        found = {Path(member.name).name: opened.extractfile(member) for member in opened}
        assert all(member.name.startswith(f"{student_id}/") for member in opened)
        for file in tiny_student.iterdir():
            packed = found.pop(file.name)
            assert packed is not None
            assert packed.read() == file.read_bytes()
    assert found == {}
    size = client.get(f"/v1/models/{student_id}").json()["bytes"]
    assert size == sum(file.stat().st_size for file in tiny_student.iterdir())


def test_an_archive_comes_in_pieces(services: Services, student_id: str) -> None:
    """No piece is larger than a mebibyte, however large the files are."""
    key = models.storage_key(student_id)
    with services.store.open(f"{key}/large.bin", "wb") as file:
        file.write(b"x" * (3 * 2**20 + 1))
    packed = archive.members(services.store, key, folder="f")
    pieces = [len(piece) for piece in archive.stream(services.store, packed)]
    assert max(pieces) <= 2**20
    assert sum(pieces) == archive.size(packed)


def test_what_has_no_files_has_no_archive(client: TestClient, services: Services, job_id: str, student_id: str) -> None:
    teacher = client.get(f"/v1/jobs/{job_id}").json()["teacher_id"]
    assert client.get(f"/v1/models/{teacher}/archive").status_code == 409
    services.store.delete(models.storage_key(student_id))
    assert client.get(f"/v1/models/{student_id}/archive").status_code == 404
    assert client.get("/v1/models/mdl_none/archive").status_code == 404


def test_renaming_and_deleting_over_http(client: TestClient, services: Services, student_id: str) -> None:
    assert client.patch(f"/v1/models/{student_id}", json={"name": ""}).status_code == 422
    assert client.patch(f"/v1/models/{student_id}", json={"name": "<new>"}).json()["name"] == "<new>"
    assert client.patch("/v1/models/mdl_none", json={"name": "x"}).status_code == 404
    asked = {"model_ids": [student_id], "messages": [{"role": "user", "content": "Hi"}]}
    comparison = client.post("/v1/comparisons", json=asked).json()["id"]
    refused = client.delete(f"/v1/models/{student_id}")
    assert refused.status_code == 409
    assert comparison in refused.json()["detail"]
    client.post(f"/v1/comparisons/{comparison}/cancel")
    assert client.delete(f"/v1/models/{student_id}").status_code == 204
    assert client.get(f"/v1/models/{student_id}").status_code == 404
    assert not services.store.exists(models.storage_key(student_id))
