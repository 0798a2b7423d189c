"""A real database and artifact store for the worker's tests, and tiny models to compare in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy.orm import Session, sessionmaker

from app.core.db import jobs, models
from app.core.db.migrate import upgrade
from app.core.db.session import make_engine, make_sessions
from app.core.ids import new_id
from app.core.job_config import DistillConfig
from app.core.storage import ArtifactStore
from tests.tiny_models import make_tiny_model, never_ending
from tests.worker.comparing import NOW
from tests.worker.training import Course, House, student_hash, training_events
from worker.comparisons import ComparisonRunner
from worker.distill.compare import ModelCache
from worker.jobs import JobRunner
from worker.training import train_here


@pytest.fixture
def sessions(tmp_path: Path) -> sessionmaker[Session]:
    url = f"sqlite:///{tmp_path / 'stillhouse.db'}"
    upgrade(url)
    return make_sessions(make_engine(url))


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(f"file://{tmp_path / 'artifacts'}")


@pytest.fixture
def runner(sessions: sessionmaker[Session], store: ArtifactStore) -> ComparisonRunner:
    cache = ModelCache()
    return ComparisonRunner(sessions=sessions, store=store, cache=lambda: cache, heartbeat_s=0.05)


@pytest.fixture
def model_ids(
    sessions: sessionmaker[Session], store: ArtifactStore, tiny_teacher: Path, tiny_student: Path
) -> Sequence[str]:
    """Ids of a teacher, a job's untrained student and its stored student."""
    config = DistillConfig.model_validate(
        {
            "teacher": {"model": str(tiny_teacher)},
            "student": {"kind": "from_teacher", "layers": 3},
            "data": {"kind": "dataset", "dataset_id": "ds_any"},
        }
    )
    student_id = new_id("mdl")
    store.put_folder(tiny_student, models.storage_key(student_id))
    with sessions.begin() as session:
        job = jobs.create(session, name="test", config=config, priority=0, now=NOW)
        source = str(tiny_teacher)
        teacher = models.ensure_teacher(session, source=source, parameters=None, now=NOW)
        untrained = models.create_untrained(
            session, job_id=job.id, name="test", source=source, parameters=None, now=NOW
        )
        models.create_student(
            session,
            model_id=student_id,
            job_id=job.id,
            name="test",
            parameters=1,
            weights_sha256="",
            card={},
            now=NOW,
        )
        return [teacher.id, untrained.id, student_id]


@pytest.fixture
def long_pair(sessions: sessionmaker[Session], tmp_path: Path) -> Sequence[str]:
    """Two models that write for long: deep enough to take far longer than anyone needs to look at them."""
    with sessions.begin() as session:
        return [
            models.ensure_teacher(
                session,
                source=str(never_ending(make_tiny_model(tmp_path / str(seed), layers=8, seed=seed, context=4200))),
                parameters=None,
                now=NOW,
            ).id
            for seed in (1, 2)
        ]


@pytest.fixture
def job_runner(sessions: sessionmaker[Session], store: ArtifactStore, tmp_path: Path) -> JobRunner:
    """Trains in this process, which is faster; test_training_process.py tests the one of its own."""
    work_folder = tmp_path / "work"
    return JobRunner(sessions=sessions, store=store, work_folder=work_folder, heartbeat_s=0.05, train=train_here)


@pytest.fixture
def house(sessions: sessionmaker[Session], store: ArtifactStore, tiny_teacher: Path, tiny_rows: Path) -> House:
    return House(sessions, store, tiny_teacher, tiny_rows)


@pytest.fixture
def reference(job_runner: JobRunner, house: House) -> Course:
    """What a run of eight steps says and makes when nothing happens to it."""
    job_id = house.submit(max_steps=8)
    job_runner.run_next(worker="w")
    return training_events(house, job_id), student_hash(house, job_id)
