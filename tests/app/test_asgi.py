"""The composition root: the whole API works where torch, Gradio and the worker are not installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from app.core.settings import ServiceSettings

# Blocks what the API's own installation lacks, then submits a job through the real application.
PROGRAM = """
import json, sys
for absent in ("torch", "gradio", "datasets", "pandas", "worker", "ui"):
    sys.modules[absent] = None
from fastapi.testclient import TestClient
from app.core.db.migrate import upgrade
from app.core.settings import ServiceSettings
upgrade(ServiceSettings().resolved_database_url)
from app.asgi import app
rows = "".join(json.dumps({"prompt": f"question {i}"}) + "\\n" for i in range(40))
with TestClient(app) as client:
    ready = client.get("/readyz").json()
    dataset = client.post("/v1/datasets", files={"file": ("rows.jsonl", rows)}).json()
    job = client.post("/v1/jobs", json={"name": "n", "config": {
        "teacher": {"model": sys.argv[1]},
        "student": {"kind": "from_teacher", "layers": 2},
        "data": {"kind": "dataset", "dataset_id": dataset["id"]},
    }}).json()
print(json.dumps({"ready": ready["status"], "job": job.get("status", job)}))
"""


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "", "STILLHOUSE_HOME": str(home)}
    command = [sys.executable, "-c", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_api_works_without_torch_gradio_and_worker(tmp_path: Path, tiny_teacher: Path) -> None:
    done = run(tmp_path, PROGRAM, str(tiny_teacher))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"ready": "ok", "job": "queued"}
    assert len(list((tmp_path / "broker" / "messages").glob("*.training.msg"))) == 1


def test_starting_the_api_loads_no_torch_where_it_is_installed(tmp_path: Path) -> None:
    heavy = ("torch", "transformers", "gradio", "worker", "ui")
    done = run(tmp_path, f"import sys, app.asgi; print([name for name in {heavy} if name in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


def test_settings_reach_their_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STILLHOUSE_HOME", str(tmp_path))
    from app.asgi import build  # here, because importing it reads the environment

    app = build(ServiceSettings(max_upload_mib=3))
    services = app.state.services
    assert services.max_upload_bytes == 3 * 2**20
    assert str(services.engine.url) == f"sqlite:///{tmp_path / 'stillhouse.db'}"
