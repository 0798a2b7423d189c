"""What most route tests start from: an uploaded data set and a job description that is accepted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient


@pytest.fixture
def dataset_id(client: TestClient) -> str:
    """40 prompts, of which 30 have a response."""
    rows = [{"prompt": f"question {i}", "response": f"answer {i}" if i < 30 else None} for i in range(40)]
    content = "\n".join(json.dumps(row) for row in rows)
    answer = client.post("/v1/datasets", files={"file": ("rows.jsonl", content)})
    assert answer.status_code == 201, answer.text
    found: str = answer.json()["id"]
    return found


@pytest.fixture
def description(dataset_id: str, tiny_teacher: Path) -> dict[str, Any]:
    """The body of POST /v1/jobs, for a tiny teacher of four layers."""
    return {
        "name": "tiny",
        "config": {
            "teacher": {"model": str(tiny_teacher)},
            "student": {"kind": "from_teacher", "layers": 2},
            "data": {"kind": "dataset", "dataset_id": dataset_id},
            "training": {"max_steps": 7},
        },
    }


@pytest.fixture
def job_id(client: TestClient, description: dict[str, Any]) -> str:
    answer = client.post("/v1/jobs", json=description)
    assert answer.status_code == 201, answer.text
    made: str = answer.json()["id"]
    return made
