"""Submission with every refusal that can be known beforehand, and reading."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.core.db import jobs
from app.core.job_config import DistillConfig
from app.core.queue import RecordingQueue
from app.deps import Services
from tests.app.routes.descriptions import Description, changed
from tests.tiny_models import make_tiny_model


def refusal(client: TestClient, description: Description, **params: Any) -> dict[str, Any]:
    """The only error of a 422 answer, with the answer's code; and nothing was stored or announced."""
    answer = client.post("/v1/jobs", json=description, params=params)
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert client.get("/v1/jobs").json()["data"] == []
    assert len(problem["errors"]) == 1, problem
    error: dict[str, Any] = problem["errors"][0]
    return {"code": problem["code"], **error}


def test_a_job_is_queued_and_announced(
    client: TestClient, services: Services, queue: RecordingQueue, description: Description
) -> None:
    answer = client.post("/v1/jobs", json=description)
    assert answer.status_code == 201
    job = answer.json()
    assert (job["status"], job["attempt"], job["max_steps"], job["student_id"]) == ("queued", 0, 7, None)
    assert DistillConfig.model_validate(job["config"]) == DistillConfig.model_validate(description["config"])
    assert queue.announced == [("stillhouse.train", job["id"])]
    with services.sessions.begin() as session:
        assert jobs.get(session, job["id"]).announced_at == services.clock()
    assert client.get(f"/v1/jobs/{job['id']}").json() == job
    teacher, untrained = (client.get(f"/v1/models/{job[key]}").json() for key in ("teacher_id", "untrained_id"))
    assert (teacher["kind"], teacher["source"]) == ("teacher", description["config"]["teacher"]["model"])
    assert (untrained["kind"], untrained["job_id"]) == ("untrained", job["id"])
    assert teacher["parameters"] > untrained["parameters"] > 0


def test_two_jobs_share_their_teacher(client: TestClient, description: Description) -> None:
    first, second = (client.post("/v1/jobs", json=description).json() for _ in range(2))
    assert first["teacher_id"] == second["teacher_id"]
    assert first["untrained_id"] != second["untrained_id"]


def test_a_broker_that_is_away_does_not_lose_the_job(
    client: TestClient, services: Services, queue: RecordingQueue, description: Description
) -> None:
    queue.fail = True
    answer = client.post("/v1/jobs", json=description)
    assert answer.status_code == 201
    with services.sessions.begin() as session:
        job = jobs.get(session, answer.json()["id"])
        assert (job.status, job.announced_at) == ("queued", None)


def test_an_idempotency_key_makes_one_job(
    client: TestClient, queue: RecordingQueue, description: Description, tmp_path: Path
) -> None:
    headers = {"Idempotency-Key": "k"}
    first = client.post("/v1/jobs", json=description, headers=headers)
    again = client.post("/v1/jobs", json=description, headers=headers)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert len(queue.announced) == 1
    other = client.post("/v1/jobs", json=description | {"priority": 1}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (409, "conflict")
    assert len(client.get("/v1/jobs").json()["data"]) == 1


def test_a_dry_run_stores_nothing(client: TestClient, queue: RecordingQueue, description: Description) -> None:
    answer = client.post("/v1/jobs", json=description, params={"dry_run": True})
    assert answer.status_code == 200
    estimate = answer.json()
    assert estimate["teacher_parameters"] > estimate["student_parameters"] > 0
    memory = estimate["memory_bytes"]
    assert memory["total"] == sum(value for name, value in memory.items() if name != "total")
    assert estimate["seconds"] > 0
    assert "no job of this kind has finished here" in estimate["seconds_basis"]
    assert estimate["disk_bytes"]["student"] == 4 * estimate["student_parameters"]
    assert "10 of 40 rows have no response" in estimate["warnings"][0]
    assert "prompts longer than 128 tokens" in estimate["warnings"][1]  # the tiny teacher's context is 256
    assert client.get("/v1/jobs").json()["data"] == []
    assert queue.announced == []


@pytest.mark.parametrize(
    ("path", "value", "loc", "kind"),
    [
        ("config.student.layerz", 3, "config.student.layerz", "extra_forbidden"),
        ("surprise", 3, "surprise", "extra_forbidden"),
        ("config.student", {"kind": "from_teacher"}, "config.student.layers", "missing"),
        ("config.student", {"kind": "invented"}, "config.student.kind", "union_tag_invalid"),
        ("config.student", {"layers": 2}, "config.student.kind", "union_tag_not_found"),
        ("config.sampling", {"kind": "psychic"}, "config.sampling.kind", "union_tag_invalid"),
        ("config.losses", [{"kind": "sft"}, {"kind": "magic"}], "config.losses.1.kind", "union_tag_invalid"),
        ("config.losses", [{"kind": "dac_kl", "top_k": 1}], "config.losses.0.top_k", "greater_than_equal"),
        ("config.recipe", "soup", "config.recipe", "literal_error"),
        ("config.recipe", ["mgsr"], "config.recipe", "literal_error"),
        ("config.training.batch_size", 0, "config.training.batch_size", "greater_than_equal"),
        ("config.training.learning_rate", "much", "config.training.learning_rate", "float_parsing"),
        ("config.losses", [{"kind": "sft"}, {"kind": "sft"}], "config", "value_error"),
        ("config.teacher", None, "config.teacher", "model_attributes_type"),
        ("config", "text", "config", "model_attributes_type"),
        ("name", "", "name", "string_too_short"),
    ],
)
def test_malformed_descriptions_name_the_field(
    client: TestClient, description: Description, path: str, value: Any, loc: str, kind: str
) -> None:
    error = refusal(client, changed(description, path, value))
    assert (".".join(map(str, error["loc"])), error["type"], error["code"]) == (loc, kind, "invalid_request")


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize(
    ("path", "value", "code", "message"),
    [
        ("config.data.dataset_id", "ds_none", "invalid_request", "no data set ds_none"),
        ("config.data.dev_rows", 40, "invalid_request", "has 40 rows"),
        ("config.student.layers", 5, "too_many_layers", "only 4 layers, not 5"),
        ("config.sampling.max_new_tokens", 256, "context_too_short", "256 tokens"),
        ("config.teacher.model", "/no/such/folder", "model_not_found", "no file or folder"),
        ("config.teacher.model", "{tmp}", "model_unreadable", "no config.json"),
    ],
)
def test_descriptions_that_cannot_run_are_refused(
    client: TestClient,
    description: Description,
    tmp_path: Path,
    path: str,
    value: Any,
    code: str,
    message: str,
    dry_run: bool,
) -> None:
    value = value.replace("{tmp}", str(tmp_path)) if isinstance(value, str) else value
    error = refusal(client, changed(description, path, value), dry_run=dry_run)
    assert (".".join(error["loc"]), error["code"]) == (path, code)
    assert message in error["msg"]


def test_files_of_the_training_machine_are_not_read_over_rest(client: TestClient, description: Description) -> None:
    error = refusal(client, changed(description, "config.data", {"kind": "file", "path": "/etc/passwd"}))
    assert error["loc"] == ["config", "data", "kind"]
    assert "upload the file" in error["msg"]


def test_a_student_with_another_tokenizer_is_refused(
    client: TestClient, description: Description, tmp_path: Path
) -> None:
    other = make_tiny_model(tmp_path, extra_tokens=["<extra>"], pad_vocabulary_to=400)
    student = {"kind": "checkpoint", "model": str(other)}
    error = refusal(client, changed(description, "config.student", student))
    assert (error["loc"], error["code"]) == (["config", "student", "model"], "vocabulary_mismatch")
    assert "320" in error["msg"]
    assert "400" in error["msg"]


def test_a_student_with_a_padded_vocabulary_is_accepted(
    client: TestClient, description: Description, tmp_path: Path
) -> None:
    padded = make_tiny_model(tmp_path, pad_vocabulary_to=384)
    student = {"kind": "checkpoint", "model": str(padded)}
    answer = client.post("/v1/jobs", json=changed(description, "config.student", student))
    assert answer.status_code == 201, answer.text


def test_numbers_that_json_does_not_know_are_refused(client: TestClient, description: Description) -> None:
    body = json.dumps(changed(description, "config.training.learning_rate", float("inf")))
    answer = client.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["loc"] == ["config", "training", "learning_rate"]


def test_text_that_one_back_end_cannot_store_is_mended_on_both(client: TestClient, description: Description) -> None:
    job_id = client.post("/v1/jobs", json=description | {"name": "a\0b"}).json()["id"]
    assert client.get(f"/v1/jobs/{job_id}").json()["name"] == "a\ufffdb"
    assert client.get("/v1/jobs/job_%00").status_code == 404


def test_broken_json_is_422(client: TestClient) -> None:
    answer = client.post("/v1/jobs", content=b"{", headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")


def test_lists_by_status_and_page(client: TestClient, description: Description) -> None:
    ids = sorted((client.post("/v1/jobs", json=description).json()["id"] for _ in range(3)), reverse=True)
    client.post(f"/v1/jobs/{ids[1]}/cancel")
    first = client.get("/v1/jobs", params={"limit": 2}).json()
    rest = client.get("/v1/jobs", params={"limit": 2, "after": ids[1]}).json()
    assert [job["id"] for job in first["data"] + rest["data"]] == ids
    assert (first["has_more"], rest["has_more"]) == (True, False)
    cancelled = client.get("/v1/jobs", params={"status": "cancelled"}).json()["data"]
    assert [job["id"] for job in cancelled] == [ids[1]]
    unknown = client.get("/v1/jobs", params={"status": "sleeping"})
    assert (unknown.status_code, unknown.json()["errors"][0]["loc"]) == (422, ["status"])


def test_a_failed_job_says_why(client: TestClient, services: Services, job_id: str) -> None:
    with services.sessions.begin() as session:
        jobs.claim_next(session, worker="w", now=services.clock())
        jobs.finish(
            session, job_id=job_id, attempt=1, status="failed", now=services.clock(), code="out_of_memory", message="m"
        )
    assert client.get(f"/v1/jobs/{job_id}").json()["error"] == {"code": "out_of_memory", "message": "m"}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("DELETE", ""),
        ("GET", "/checkpoints"),
        ("GET", "/events"),
        ("GET", "/metrics"),
        ("POST", "/cancel"),
        ("POST", "/pause"),
        ("POST", "/resume"),
        ("POST", "/retry"),
    ],
)
def test_unknown_jobs_are_404(client: TestClient, method: str, path: str) -> None:
    answer = client.request(method, f"/v1/jobs/job_none{path}")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_lists_by_part_of_a_name(client: TestClient, description: Description) -> None:
    ids = [client.post("/v1/jobs", json=description | {"name": name}).json()["id"] for name in ("Summer", "winter")]
    found = client.get("/v1/jobs", params={"q": "SUMM", "status": "queued"}).json()["data"]
    assert [job["id"] for job in found] == ids[:1]


def test_a_job_tells_its_recipe_limits_and_needs(client: TestClient, description: Description) -> None:
    estimate = client.post("/v1/jobs", json=description, params={"dry_run": True}).json()
    job = client.post("/v1/jobs", json=description | {"max_hours": 2.5, "max_attempts": 5}).json()
    assert (job["recipe"], job["max_hours"], job["max_attempts"], job["failures"]) == ("mgsr", 2.5, 5, 0)
    assert job["memory_bytes"] == estimate["memory_bytes"]["total"]
    assert (job["eta_s"], job["tokens"], job["waiting_reason"], job["pause_requested"]) == (None, 0, None, False)
