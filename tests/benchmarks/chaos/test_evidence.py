"""What is left behind is found: planted processes, folders and checkpoints, and not what belongs to somebody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import pytest
from sqlalchemy.orm import Session, sessionmaker

from app.core.compare_schemas import ComparisonIn
from app.core.db import comparisons, jobs, models
from app.core.db.migrate import upgrade
from app.core.db.session import make_engine, make_sessions
from app.core.folder_cache import FolderCache
from app.core.job_config import DistillConfig
from benchmarks.chaos import evidence

CONFIG = DistillConfig.model_validate(
    {
        "teacher": {"model": "t"},
        "student": {"kind": "from_teacher", "layers": 1},
        "data": {"kind": "dataset", "dataset_id": "ds_1"},
    }
)


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[sessionmaker[Session]]:
    url = f"sqlite:///{tmp_path / 'stillhouse.db'}"
    upgrade(url)
    engine = make_engine(url)
    yield make_sessions(engine)
    engine.dispose()


def left(sessions: sessionmaker[Session], folder: Path) -> list[str]:
    states = FolderCache(folder / "states", limit_bytes=100)
    return evidence.files_left(sessions, storage=folder / "artifacts", work_folder=folder / "work", states=states)


def test_a_process_of_the_service_that_outlives_it_is_found(tmp_path: Path) -> None:
    environment = {**os.environ, "STILLHOUSE_HOME": str(tmp_path)}
    waits = [sys.executable, "-c", "input()"]
    with subprocess.Popen(waits, env=environment, stdin=subprocess.PIPE) as process:
        assert [f"process {process.pid} " in line for line in evidence.processes_left(tmp_path)] == [True]
        assert evidence.processes_left(tmp_path / "another") == []
        process.communicate(b"\n")
    assert evidence.processes_left(tmp_path) == []


def test_comparisons_that_did_not_end_as_promised_are_found(sessions: sessionmaker[Session]) -> None:
    wanted = ComparisonIn(model_ids=["mdl_1"], messages=[{"role": "user", "content": "x"}])
    now = datetime.now(UTC)
    ends: list[tuple[int, str | None]] = [(1, None), (2, "worker_lost"), (3, "worker_lost"), (3, "internal_error")]
    with sessions.begin() as session:
        made = [comparisons.create(session, request=wanted, now=now) for _ in range(5)]
        for row, (attempt, code) in zip(made, ends, strict=False):
            row.attempt, row.error_code = attempt, code
            row.status = "failed" if code else "succeeded"
    assert set(evidence.unfinished_comparisons(sessions)) == {made[1].id, made[3].id, made[4].id}


def test_a_student_is_wanted_and_files_of_nobody_are_cleaned_away(
    sessions: sessionmaker[Session], tmp_path: Path
) -> None:
    with sessions.begin() as session:
        model = models.create_tuned_teacher(
            session, model_id="mdl_1", job_id="job_1", name="t", card={}, now=datetime.now(UTC)
        )
        source = model.source
    for name in (source, "students/.mdl_2.half", "checkpoints/job_2/1"):
        (tmp_path / "artifacts" / name).mkdir(parents=True)
        (tmp_path / "artifacts" / name / "file").touch()
    (tmp_path / "work/job_2/1").mkdir(parents=True)
    assert left(sessions, tmp_path) == []
    assert (tmp_path / "artifacts" / source / "file").exists()
    assert not (tmp_path / "artifacts/checkpoints/job_2").exists()


def test_what_cleaning_does_not_know_is_found(sessions: sessionmaker[Session], tmp_path: Path) -> None:
    (tmp_path / "work/something").mkdir(parents=True)
    assert left(sessions, tmp_path) == [f"{tmp_path / 'work/something'} is left"]


def checkpoint(attempt: Path, step: int) -> None:
    folder = attempt / f"step-{step:08d}"
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(b"12")
    moment = {"phase": "training", "step": step}
    (folder / "manifest.json").write_text(json.dumps({"moment": moment, "files": {"weights": {"bytes": 2}}}))


def test_too_many_checkpoints_and_those_of_lost_attempts_are_found(
    sessions: sessionmaker[Session], tmp_path: Path
) -> None:
    job = tmp_path / "artifacts/checkpoints/job_1"
    for step in (1, 2, 3):
        checkpoint(job / "2", step)
    (job / "1").mkdir()  # made too late, and empty
    assert left(sessions, tmp_path) == []
    for step in (1, 2, 3, 4):
        checkpoint(job / "2", step)
    checkpoint(job / "1", 1)
    assert [line.rpartition(f"{job}")[2] for line in left(sessions, tmp_path)] == [
        "/1, which nobody reads",
        "/2",
    ]


def test_a_half_checkpoint_of_a_job_that_succeeded_is_found(sessions: sessionmaker[Session], tmp_path: Path) -> None:
    def ended(status: Literal["succeeded", "cancelled"]) -> Path:
        now = datetime.now(UTC)
        with sessions.begin() as session:
            job_id = jobs.create(session, name="j", config=CONFIG, priority=0, now=now).id
            assert jobs.claim_next(session, worker="w", now=now) is not None
            jobs.finish(session, job_id=job_id, attempt=1, status=status, now=now)
        half = tmp_path / "artifacts/checkpoints" / job_id / "1/.tmp-half"
        half.mkdir(parents=True)
        return half

    found = {status: ended(status) for status in ("succeeded", "cancelled")}
    assert left(sessions, tmp_path) == [f"{found['succeeded']} was never finished"]
