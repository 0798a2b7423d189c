"""Claimed jobs with a real tiny teacher: every way to end, as the database and the store show it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, sessionmaker
from transformers import AutoModelForCausalLM

from app.core.db import datasets, events, job_requests, job_sweeps, jobs, models
from app.core.db.tables import EventRow, Job, Model
from app.core.job_config import DistillConfig
from app.core.storage import ArtifactStore
from tests.tiny_models import write_rows
from tests.waiting import until
from worker.jobs import JobRunner


@pytest.fixture
def runner(sessions: sessionmaker[Session], store: ArtifactStore, tmp_path: Path) -> JobRunner:
    return JobRunner(sessions=sessions, store=store, work_folder=tmp_path / "work", heartbeat_s=0.05)


class House:
    """What the tests do to the database around a run."""

    def __init__(self, sessions: sessionmaker[Session], store: ArtifactStore, teacher: Path, rows: Path) -> None:
        self.sessions, self.store, self.teacher = sessions, store, teacher
        store.put_file(rows, datasets.storage_key("ds_test"))

    def submit(self, *, dataset_id: str = "ds_test", priority: int = 0, **training: Any) -> str:
        config = DistillConfig.model_validate(
            {
                "teacher": {"model": str(self.teacher)},
                "student": {"kind": "from_teacher", "layers": 1},
                "data": {"kind": "dataset", "dataset_id": dataset_id, "dev_rows": 4},
                "sampling": {"max_new_tokens": 8},
                "training": {"max_steps": 3, "batch_size": 2, **training},
                "evaluation": {"rouge_rows": 2},
            }
        )
        with self.sessions.begin() as session:
            return jobs.create(session, name="test", config=config, priority=priority, now=datetime.now(UTC)).id

    def job(self, job_id: str) -> Job:
        with self.sessions.begin() as session:
            return jobs.get(session, job_id)

    def events(self, job_id: str) -> list[EventRow]:
        with self.sessions.begin() as session:
            return list(events.page(session, job_id=job_id, after=0, limit=10_000)[0])

    def payloads(self, job_id: str) -> list[Mapping[str, Any]]:
        return [row.payload for row in self.events(job_id)]

    @contextmanager
    def once_it_trains(self, job_id: str, act: Callable[[Session], object]) -> Iterator[None]:
        """Runs `act` in a transaction of its own, in another thread, when the job has done a step."""

        def run() -> None:
            until(lambda: self.job(job_id).step >= 1)
            with self.sessions.begin() as session:
                act(session)

        thread = threading.Thread(target=run)
        thread.start()
        yield
        thread.join()


@pytest.fixture
def house(sessions: sessionmaker[Session], store: ArtifactStore, tiny_teacher: Path, tiny_rows: Path) -> House:
    return House(sessions, store, tiny_teacher, tiny_rows)


def test_nothing_queued(runner: JobRunner) -> None:
    assert runner.run_next(worker="w") is None


def test_success_leaves_a_student_that_loads(runner: JobRunner, house: House, tmp_path: Path) -> None:
    job_id = house.submit()
    assert runner.run_next(worker="w") == job_id

    job = house.job(job_id)
    assert (job.status, job.step, job.attempt, job.error_code) == ("succeeded", 3, 1, None)
    with house.sessions.begin() as session:
        student = models.get(session, job.student_id)
    assert (student.kind, student.job_id, student.name) == ("student", job_id, "test")
    assert student.card["teacher"] == str(house.teacher)
    assert student.card["data"]["dataset_id"] == "ds_test"
    assert {"before/eval/kl_ts", "after/eval/kl_ts"} <= set(student.card["metrics"])
    loaded = AutoModelForCausalLM.from_pretrained(house.store.local_path(student.source))
    assert loaded.num_parameters() == student.parameters
    assert loaded.config.num_hidden_layers == 1
    assert list((tmp_path / "work").iterdir()) == []


def test_events_lead_from_running_to_succeeded_without_a_hole(runner: JobRunner, house: House) -> None:
    job_id = house.submit()
    runner.run_next(worker="w")
    rows = house.events(job_id)
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    assert [row.payload["status"] for row in rows if row.payload["kind"] == "status"] == [
        "queued",
        "running",
        "succeeded",
    ]
    assert rows[-1].payload["status"] == "succeeded"
    assert [row.payload["step"] for row in rows if row.payload["kind"] == "step"] == [1, 2, 3]
    assert {row.attempt for row in rows[1:]} == {1}


def test_higher_priority_first(runner: JobRunner, house: House) -> None:
    low, high = house.submit(max_steps=1), house.submit(max_steps=1, priority=5)
    assert [runner.run_next(worker="w"), runner.run_next(worker="w")] == [high, low]


def test_data_that_do_not_fit_fail_with_code_and_cure(runner: JobRunner, house: House, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "long.jsonl", 8)
    rows.write_text(rows.read_text().replace('"content": "', '"content": "' + "so many birds " * 200))
    house.store.put_file(rows, datasets.storage_key("ds_long"))
    job_id = house.submit(dataset_id="ds_long")
    runner.run_next(worker="w")
    job = house.job(job_id)
    assert (job.status, job.student_id) == ("failed", None)
    assert job.error_code in {"context_too_short", "bad_dataset"}
    assert "max_prompt_tokens" in job.error_message
    assert house.payloads(job_id)[-1]["code"] == job.error_code


def test_missing_rows_fail_naming_the_data_set(runner: JobRunner, house: House) -> None:
    job_id = house.submit(dataset_id="ds_gone")
    runner.run_next(worker="w")
    job = house.job(job_id)
    assert (job.status, job.error_code) == ("failed", "not_found")
    assert "ds_gone" in job.error_message


def test_description_of_another_version_fails_its_own_job_only(runner: JobRunner, house: House) -> None:
    broken, good = house.submit(), house.submit(max_steps=1)
    with house.sessions.begin() as session:
        job = jobs.get(session, broken)
        job.config = {**job.config, "of_an_older_version": True}
    assert [runner.run_next(worker="w"), runner.run_next(worker="w")] == [broken, good]
    assert (house.job(broken).error_code, house.job(good).status) == ("invalid_request", "succeeded")
    assert "of_an_older_version" in house.job(broken).error_message


def test_cancel_acts_at_a_step_boundary(runner: JobRunner, house: House) -> None:
    job_id = house.submit(max_steps=100_000)
    with house.once_it_trains(job_id, lambda s: job_requests.request_cancel(s, job_id=job_id, now=datetime.now(UTC))):
        runner.run_next(worker="w")
    job = house.job(job_id)
    assert job.status == "cancelled"
    assert 1 <= job.step < 100_000
    assert house.payloads(job_id)[-1]["status"] == "cancelled"


def test_lost_claim_stops_silently(runner: JobRunner, house: House, tmp_path: Path) -> None:
    """Another worker takes the job over: the first one stops, and whatever it made is gone."""
    job_id = house.submit(max_steps=100_000)

    def take_over(session: Session) -> None:
        later = datetime.now(UTC) + timedelta(hours=1)
        assert job_sweeps.requeue_stale(session, now=later, lease_s=60) == [job_id]
        assert jobs.claim_next(session, worker="other", now=later) is not None

    with house.once_it_trains(job_id, take_over):
        runner.run_next(worker="w")
    job = house.job(job_id)
    assert (job.status, job.attempt, job.worker, job.step) == ("running", 2, "other", 0)
    assert house.payloads(job_id)[-1]["status"] == "running"
    assert not (tmp_path / "artifacts" / "students").exists()


def test_what_killed_workers_left_is_removed_and_what_runs_is_not(
    runner: JobRunner, house: House, tmp_path: Path
) -> None:
    elsewhere = house.submit(priority=1)
    with house.sessions.begin() as session:
        assert jobs.claim_next(session, worker="other", now=datetime.now(UTC)) is not None
    for name in (elsewhere, "job_of_long_ago"):
        (tmp_path / "work" / name).mkdir(parents=True)
    house.submit(max_steps=1)
    runner.run_next(worker="w")
    assert [folder.name for folder in (tmp_path / "work").iterdir()] == [elsewhere]


def test_unforeseen_error_fails_the_job(runner: JobRunner, house: House, tmp_path: Path) -> None:
    """The store cannot take the student: a file is where its folder should be."""
    (tmp_path / "artifacts" / "students").write_text("in the way")
    job_id = house.submit(max_steps=1)
    runner.run_next(worker="w")
    job = house.job(job_id)
    assert (job.status, job.error_code) == ("failed", "internal_error")
    assert "traceback" in job.error_message


def test_student_is_kept_when_only_the_confirmation_of_its_commit_was_lost(
    runner: JobRunner, house: House, sessions: sessionmaker[Session]
) -> None:
    lost = []

    @event.listens_for(sessions, "after_flush")
    def note_the_student(session: Session, _context: object) -> None:
        if any(isinstance(row, Model) for row in session.new):
            session.info["has_student"] = True

    @event.listens_for(sessions, "after_commit")
    def lose_the_confirmation(session: Session) -> None:
        if not lost and session.info.pop("has_student", False):
            lost.append(True)
            raise OperationalError("COMMIT", {}, Exception("connection reset"))

    job_id = house.submit(max_steps=1)
    runner.run_next(worker="w")
    job = house.job(job_id)
    assert (lost, job.status) == ([True], "succeeded")
    assert house.store.exists(models.storage_key(job.student_id))
