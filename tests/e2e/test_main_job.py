"""Submit, train, watch, compare: over real HTTP, with real processes and a tiny real model, on both back ends."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.running_service import RunningService
from tests.tiny_models import write_rows

pytestmark = pytest.mark.slow


def submit(house: RunningService, teacher: Path, rows: Path, *, steps: int, **config: Any) -> str:
    """A job of `steps` steps on the uploaded `rows`; its id. `config` holds further sections."""
    job = {
        "name": "test",
        "config": {
            "teacher": {"model": str(teacher)},
            "student": {"kind": "from_teacher", "layers": 2},
            "data": {"kind": "dataset", "dataset_id": house.upload(rows), "dev_rows": 4, "max_response_tokens": 16},
            "sampling": {"kind": "adaptive_off_policy", "phi_start": 0.5, "max_new_tokens": 8},
            "training": {"max_steps": steps, "batch_size": 2},
            "evaluation": {"every_steps": 1000, "rouge_rows": 2},
            **config,
        },
    }
    return house.post("/v1/jobs", json=job)["id"]


def all_events(house: RunningService, job_id: str) -> list[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = []
    while True:
        page = house.get(f"/v1/jobs/{job_id}/events", after=rows[-1]["seq"] if rows else 0, limit=100)
        rows += page["data"]
        if not page["has_more"]:
            return rows


def wait_for_steps(house: RunningService, job_id: str, *, attempt: int = 1) -> None:
    def trains() -> bool:
        job = house.get(f"/v1/jobs/{job_id}")
        return job["attempt"] == attempt and job["step"] >= 1

    house.until(trains)


def test_from_upload_to_comparison(house: RunningService, tiny_teacher: Path, tiny_rows: Path) -> None:
    job_id = submit(house, tiny_teacher, tiny_rows, steps=4)
    job = house.wait_for_end(job_id)
    assert (job["status"], job["error"], job["attempt"], job["step"]) == ("succeeded", None, 1, 4)

    rows = all_events(house, job_id)
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    kinds = [row["event"]["kind"] for row in rows]
    assert [row["event"]["status"] for row in rows if row["event"]["kind"] == "status"] == [
        "queued",
        "running",
        "succeeded",
    ]
    assert kinds.count("step") == 4
    assert {"phase", "started", "evaluated", "exported"} <= set(kinds)
    curves = {series["name"] for series in house.get(f"/v1/jobs/{job_id}/metrics")["series"]}
    assert {"loss/total", "loss/sft", "loss/dac_kl", "loss/span", "eval/kl_ts"} <= curves

    student = house.get(f"/v1/models/{job['student_id']}")
    assert {"before/eval/kl_ts", "after/eval/kl_ts"} <= set(student["card"]["metrics"])
    folder = house.settings.home_folder / "artifacts" / student["source"]
    assert AutoModelForCausalLM.from_pretrained(folder).num_parameters() == student["parameters"]
    assert AutoTokenizer.from_pretrained(folder).chat_template

    ids = [job["teacher_id"], job["untrained_id"], job["student_id"]]
    comparison = compare(house, ids)
    assert [answer["model_id"] for answer in comparison["answers"]] == ids
    assert len({answer["weights_sha256"] for answer in comparison["answers"]}) == 3
    assert comparison["answers"][2]["weights_sha256"] == student["weights_sha256"]
    assert compare(house, ids)["answers"][0]["text"] == comparison["answers"][0]["text"]


def compare(house: RunningService, model_ids: list[str]) -> Mapping[str, Any]:
    request = {
        "model_ids": model_ids,
        "messages": [{"role": "user", "content": "the small brown dog"}],
        "max_new_tokens": 8,
    }
    path = f"/v1/comparisons/{house.post('/v1/comparisons', json=request)['id']}"
    house.until(lambda: house.get(path)["status"] in ("succeeded", "failed"))
    comparison = house.get(path)
    assert (comparison["status"], comparison["error"]) == ("succeeded", None)
    return comparison


def test_cancel_acts_at_a_step_boundary(house: RunningService, tiny_teacher: Path, tiny_rows: Path) -> None:
    job_id = submit(house, tiny_teacher, tiny_rows, steps=100_000)
    wait_for_steps(house, job_id)
    house.post(f"/v1/jobs/{job_id}/cancel")
    job = house.wait_for_end(job_id, timeout_s=15)
    assert (job["status"], job["student_id"], job["error"]) == ("cancelled", None, None)
    assert 1 <= job["step"] < 100_000
    assert house.http.post(f"/v1/jobs/{job_id}/cancel").status_code == 409


def test_prompt_that_does_not_fit_fails_with_code_and_cure(
    house: RunningService, tiny_teacher: Path, tmp_path: Path
) -> None:
    rows = write_rows(tmp_path / "long.jsonl", 8)
    rows.write_text(rows.read_text().replace('"content": "', '"content": "' + "so many birds " * 100))
    job = house.wait_for_end(submit(house, tiny_teacher, rows, steps=2, scrg={"rounds": 0}))
    assert job["status"] == "failed"
    assert job["error"]["code"] in {"context_too_short", "bad_dataset"}
    assert "row 1" in job["error"]["message"]
    assert all_events(house, job["id"])[-1]["event"]["code"] == job["error"]["code"]


def test_killed_worker_loses_no_job(house: RunningService, tiny_teacher: Path, tiny_rows: Path) -> None:
    """The kernel kills the training process: its claim runs out, the sweeper queues the job again, it is done."""
    job_id = submit(house, tiny_teacher, tiny_rows, steps=60)
    wait_for_steps(house, job_id)
    for process in house.descendants("training"):
        process.send_signal(signal.SIGKILL)
    job = house.wait_for_end(job_id)
    assert (job["status"], job["attempt"], job["step"]) == ("succeeded", 2, 60)
    rows = all_events(house, job_id)
    assert [row["event"]["status"] for row in rows if row["event"]["kind"] == "status"] == [
        "queued",
        "running",
        "queued",
        "running",
        "succeeded",
    ]
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
