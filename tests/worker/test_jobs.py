"""Claimed jobs with a real tiny teacher: every way to end, as the database and the store show it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, sessionmaker
from transformers import AutoModelForCausalLM

from app.core.db import datasets, job_requests, job_sweeps, jobs, models, workers
from app.core.db.tables import Model
from app.core.job_config import DistillConfig
from tests.lost_confirmations import losing_confirmations
from tests.tiny_models import write_rows
from tests.worker.training import House, training_events
from worker.jobs import JobRunner
from worker.training import TrainedStudent, train_here


def test_nothing_queued(job_runner: JobRunner) -> None:
    assert job_runner.run_next(worker="w") is None


def test_success_leaves_a_student_that_loads(job_runner: JobRunner, house: House, tmp_path: Path) -> None:
    job_id = house.submit()
    assert job_runner.run_next(worker="w") == job_id

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


def test_events_lead_from_running_to_succeeded_without_a_hole(job_runner: JobRunner, house: House) -> None:
    job_id = house.submit()
    job_runner.run_next(worker="w")
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


def test_higher_priority_first(job_runner: JobRunner, house: House) -> None:
    low, high = house.submit(max_steps=1), house.submit(max_steps=1, priority=5)
    assert [job_runner.run_next(worker="w"), job_runner.run_next(worker="w")] == [high, low]


def test_data_that_do_not_fit_fail_with_code_and_cure(job_runner: JobRunner, house: House, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "long.jsonl", 8)
    rows.write_text(rows.read_text().replace('"content": "', '"content": "' + "so many birds " * 200))
    house.store.put_file(rows, datasets.storage_key("ds_long"))
    job_id = house.submit(dataset_id="ds_long")
    job_runner.run_next(worker="w")
    job = house.job(job_id)
    assert (job.status, job.student_id) == ("failed", None)
    assert job.error_code in {"context_too_short", "bad_dataset"}
    assert "max_prompt_tokens" in job.error_message
    assert house.payloads(job_id)[-1]["code"] == job.error_code


def test_missing_rows_fail_naming_the_data_set(job_runner: JobRunner, house: House) -> None:
    job_id = house.submit(dataset_id="ds_gone")
    job_runner.run_next(worker="w")
    job = house.job(job_id)
    assert (job.status, job.error_code) == ("failed", "not_found")
    assert "ds_gone" in job.error_message


def test_description_of_another_version_fails_its_own_job_only(job_runner: JobRunner, house: House) -> None:
    broken, good = house.submit(), house.submit(max_steps=1)
    with house.sessions.begin() as session:
        job = jobs.get(session, broken)
        job.config = {**job.config, "of_an_older_version": True}
    assert [job_runner.run_next(worker="w"), job_runner.run_next(worker="w")] == [broken, good]
    assert (house.job(broken).error_code, house.job(good).status) == ("invalid_request", "succeeded")
    assert "of_an_older_version" in house.job(broken).error_message


def test_cancel_acts_at_a_step_boundary(job_runner: JobRunner, house: House) -> None:
    job_id = house.submit(max_steps=100_000)
    with house.once_it_trains(job_id, lambda s: job_requests.request_cancel(s, job_id=job_id, now=datetime.now(UTC))):
        job_runner.run_next(worker="w")
    job = house.job(job_id)
    assert job.status == "cancelled"
    assert 1 <= job.step < 100_000
    assert house.payloads(job_id)[-1]["status"] == "cancelled"


def test_lost_claim_stops_silently(job_runner: JobRunner, house: House, tmp_path: Path) -> None:
    """Another worker takes the job over: the first one stops, and whatever it made is gone."""
    job_id = house.submit(max_steps=100_000)

    def take_over(session: Session) -> None:
        later = datetime.now(UTC) + timedelta(hours=1)
        assert job_sweeps.requeue_stale(session, now=later, lease_s=60) == [job_id]
        assert jobs.claim_next(session, worker="other", now=later) is not None
        (tmp_path / "work" / job_id / "2").mkdir(parents=True)  # the other one is on the same machine

    with house.once_it_trains(job_id, take_over):
        job_runner.run_next(worker="w")
    job = house.job(job_id)
    step = max(told["step"] for told in house.payloads(job_id) if told["kind"] == "step")
    assert (job.status, job.attempt, job.worker, job.step) == ("running", 2, "other", step)
    assert house.payloads(job_id)[-1]["status"] == "running"
    assert not (tmp_path / "artifacts" / "students").exists()
    assert [folder.name for folder in (tmp_path / "work" / job_id).iterdir()] == ["2"]


def test_what_killed_workers_left_is_removed_and_what_runs_is_not(
    job_runner: JobRunner, house: House, tmp_path: Path
) -> None:
    elsewhere = house.submit(priority=1)
    with house.sessions.begin() as session:
        assert jobs.claim_next(session, worker="other", now=datetime.now(UTC)) is not None
    for name in (elsewhere, "job_of_long_ago"):
        (tmp_path / "work" / name).mkdir(parents=True)
    house.submit(max_steps=1)
    job_runner.run_next(worker="w")
    assert [folder.name for folder in (tmp_path / "work").iterdir()] == [elsewhere]


def test_unforeseen_error_fails_the_job(job_runner: JobRunner, house: House, tmp_path: Path) -> None:
    """The store cannot take the student: a file is where its folder should be."""
    (tmp_path / "artifacts" / "students").write_text("in the way")
    job_id = house.submit(max_steps=1)
    job_runner.run_next(worker="w")
    job = house.job(job_id)
    assert (job.status, job.error_code) == ("failed", "internal_error")
    assert "traceback" in job.error_message


def test_student_is_kept_when_only_the_confirmation_of_its_commit_was_lost(
    job_runner: JobRunner, house: House, sessions: sessionmaker[Session]
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
    job_runner.run_next(worker="w")
    job = house.job(job_id)
    assert (lost, job.status) == ([True], "succeeded")
    assert house.store.exists(models.storage_key(job.student_id))


def test_commits_whose_confirmation_is_lost_repeat_no_event(
    job_runner: JobRunner, house: House, sessions: sessionmaker[Session]
) -> None:
    def train(*args: Any, **named: Any) -> TrainedStudent:
        with losing_confirmations(sessions):
            return train_here(*args, **named)

    undisturbed, job_id = house.submit(max_steps=8), house.submit(max_steps=8)
    assert job_runner.run_next(worker="w") == undisturbed
    assert replace(job_runner, train=train).run_next(worker="w") == job_id
    assert house.job(job_id).status == "succeeded"
    assert training_events(house, job_id) == training_events(house, undisturbed)


def test_the_time_limit_ends_a_job_and_keeps_its_checkpoint(job_runner: JobRunner, house: House) -> None:
    job_id = house.submit(max_steps=100_000, job={"max_hours": 1.0})
    with house.sessions.begin() as session:
        jobs.get(session, job_id).used_s = 3600 - 2.0  # two seconds are left
    job_runner.run_next(worker="w")
    job = house.job(job_id)
    assert (job.status, job.error_code) == ("failed", "time_limit")
    assert "checkpoint is kept" in job.error_message
    assert house.store.files(jobs.checkpoints_key(job_id))


def test_a_job_that_does_not_fit_is_not_taken(job_runner: JobRunner, house: House) -> None:
    job_id = house.submit(max_steps=1, job={"memory_bytes": 2 * 2**30})
    report = workers.WorkerReport(
        name="small",
        queue="training",
        host="h",
        pid=1,
        device="cpu",
        memory_bytes=2**30,
        versions={},
        started_at=datetime.now(UTC),
    )
    with house.sessions.begin() as session:
        workers.report(session, report, now=datetime.now(UTC))
    assert job_runner.run_next(worker="small") is None
    assert job_runner.run_next(worker="unknown") == job_id


def test_out_of_memory_says_what_there_was_and_what_to_lower(job_runner: JobRunner, house: House) -> None:
    def train(config: DistillConfig, **_: Any) -> TrainedStudent:
        raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 24.00 GiB")

    job_id = house.submit(batch_size=8, job={"memory_bytes": 31 * 2**30})
    replace(job_runner, train=train).run_next(worker="w")
    job = house.job(job_id)
    assert (job.status, job.error_code) == ("failed", "out_of_memory")
    for words in ("20.00 GiB", "24.00 GiB", "31 GiB", "training.batch_size from 8 to 4", "accumulation from 1 to 2"):
        assert words in job.error_message
