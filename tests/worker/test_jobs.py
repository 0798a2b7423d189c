"""Claimed jobs with a real tiny teacher: every way to end, as the database and the store show it."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, sessionmaker
from transformers import AutoModelForCausalLM

from app.core.db import datasets, events, job_requests, job_sweeps, jobs, models, workers
from app.core.db.tables import EventRow, Job, Model
from app.core.errors import WorkerLost
from app.core.events import Emit, Event, Resumed, StepDone, is_training_event, parse_event
from app.core.job_config import DistillConfig
from app.core.storage import ArtifactStore
from tests.lost_confirmations import losing_confirmations
from tests.tiny_models import write_rows
from tests.waiting import until
from worker.jobs import JobRunner
from worker.training import Stop, Train, TrainedStudent, train_here

NOTHING: Mapping[str, Any] = MappingProxyType({})


@pytest.fixture
def runner(sessions: sessionmaker[Session], store: ArtifactStore, tmp_path: Path) -> JobRunner:
    """Trains in this process, which is faster; test_training_process.py tests the one of its own."""
    work_folder = tmp_path / "work"
    return JobRunner(sessions=sessions, store=store, work_folder=work_folder, heartbeat_s=0.05, train=train_here)


class House:
    """What the tests do to the database around a run."""

    def __init__(self, sessions: sessionmaker[Session], store: ArtifactStore, teacher: Path, rows: Path) -> None:
        self.sessions, self.store, self.teacher = sessions, store, teacher
        store.put_file(rows, datasets.storage_key("ds_test"))

    def submit(
        self, *, dataset_id: str = "ds_test", priority: int = 0, job: Mapping[str, Any] = NOTHING, **training: Any
    ) -> str:
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
            return jobs.create(session, name="test", config=config, priority=priority, now=datetime.now(UTC), **job).id

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
        """Runs `act` in a transaction of its own, in another thread, when the job has done a step. If that fails, the
        job is cancelled, so that the block ends."""

        def run() -> None:
            until(lambda: self.job(job_id).step >= 1)
            try:
                with self.sessions.begin() as session:
                    act(session)
            except BaseException:
                with self.sessions.begin() as session:
                    job_requests.request_cancel(session, job_id=job_id, now=datetime.now(UTC))
                raise

        with ThreadPoolExecutor(1) as pool:
            acted = pool.submit(run)
            yield
            acted.result()


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
        (tmp_path / "work" / job_id / "2").mkdir(parents=True)  # the other one is on the same machine

    with house.once_it_trains(job_id, take_over):
        runner.run_next(worker="w")
    job = house.job(job_id)
    step = max(told["step"] for told in house.payloads(job_id) if told["kind"] == "step")
    assert (job.status, job.attempt, job.worker, job.step) == ("running", 2, "other", step)
    assert house.payloads(job_id)[-1]["status"] == "running"
    assert not (tmp_path / "artifacts" / "students").exists()
    assert [folder.name for folder in (tmp_path / "work" / job_id).iterdir()] == ["2"]


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


def test_commits_whose_confirmation_is_lost_repeat_no_event(
    runner: JobRunner, house: House, sessions: sessionmaker[Session]
) -> None:
    def train(*args: Any, **named: Any) -> TrainedStudent:
        with losing_confirmations(sessions):
            return train_here(*args, **named)

    undisturbed, job_id = house.submit(max_steps=8), house.submit(max_steps=8)
    assert runner.run_next(worker="w") == undisturbed
    assert replace(runner, train=train).run_next(worker="w") == job_id
    assert house.job(job_id).status == "succeeded"
    assert training_events(house, job_id) == training_events(house, undisturbed)


# --- leaving off and going on ---------------------------------------------------------------------------------


def training_events(house: House, job_id: str) -> list[tuple[str, int]]:
    """Kind and step of what the run said of its course, in the order of `seq`, which has no hole."""
    rows = house.events(job_id)
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    return [(told.kind, told.step) for row in rows if is_training_event(told := parse_event(row.payload))]


def student_hash(house: House, job_id: str) -> str | None:
    with house.sessions.begin() as session:
        return models.get(session, house.job(job_id).student_id).weights_sha256


@pytest.fixture
def reference(runner: JobRunner, house: House) -> tuple[list[tuple[str, int]], str | None]:
    """What a run of eight steps says and makes when nothing happens to it."""
    job_id = house.submit(max_steps=8)
    runner.run_next(worker="w")
    return training_events(house, job_id), student_hash(house, job_id)


def waiting_for_a_wish(train: Train) -> Train:
    """Goes on after its first step only once somebody wants it to stop: a short training is not over before."""

    def run(config: DistillConfig, *, emit: Emit, should_stop: Callable[[], Stop | None], **where: Path) -> Any:
        has_stepped = threading.Event()

        def tell(event: Event) -> None:
            emit(event)
            if isinstance(event, StepDone):
                has_stepped.set()

        def wish() -> Stop | None:
            if has_stepped.is_set():
                until(lambda: should_stop() is not None)
            return should_stop()

        return train(config, emit=tell, should_stop=wish, **where)

    return run


def test_paused_and_resumed_is_as_if_nothing_had_happened(
    runner: JobRunner, house: House, reference: tuple[list[tuple[str, int]], str | None]
) -> None:
    job_id = house.submit(max_steps=8, checkpoint_every=0)
    with house.once_it_trains(job_id, lambda s: job_requests.request_pause(s, job_id=job_id, now=datetime.now(UTC))):
        replace(runner, train=waiting_for_a_wish(runner.train)).run_next(worker="w")
    paused = house.job(job_id)
    assert (paused.status, paused.pause_requested, paused.failures) == ("paused", False, 0)
    assert runner.run_next(worker="w") is None
    with house.sessions.begin() as session:
        job_requests.resume(session, job_id=job_id, now=datetime.now(UTC))
    assert runner.run_next(worker="w") == job_id
    assert (house.job(job_id).status, house.job(job_id).attempt) == ("succeeded", 2)
    assert (training_events(house, job_id), student_hash(house, job_id)) == reference
    assert "resumed" in [told["kind"] for told in house.payloads(job_id)]


def test_a_worker_that_is_to_end_hands_its_job_back(
    runner: JobRunner, house: House, reference: tuple[list[tuple[str, int]], str | None]
) -> None:
    job_id, leaving = house.submit(max_steps=8), threading.Event()
    with house.once_it_trains(job_id, lambda _: leaving.set()):
        replace(runner, leaving=leaving.is_set, train=waiting_for_a_wish(runner.train)).run_next(worker="old")
    handed_back = house.job(job_id)
    assert (handed_back.status, handed_back.failures) == ("queued", 0)
    assert "shut down" in house.payloads(job_id)[-1]["message"]
    assert runner.run_next(worker="new") == job_id
    assert (training_events(house, job_id), student_hash(house, job_id)) == reference


def killed_at(step: int) -> Train:
    """Trains until that step, and then dies: what was said last is lost, and nothing is put in order."""

    def train(config: DistillConfig, *, emit: Emit, **rest: Any) -> TrainedStudent:
        def emit_until(event: Event) -> None:
            if isinstance(event, StepDone) and event.step == step:
                raise WorkerLost("killed")
            emit(event)

        return train_here(config, emit=emit_until, **rest)

    return train


@pytest.mark.parametrize("every", [1, 3, 100])
def test_a_killed_run_goes_on_without_gap_or_double(
    runner: JobRunner, house: House, reference: tuple[list[tuple[str, int]], str | None], every: int
) -> None:
    job_id = house.submit(max_steps=8, checkpoint_every=every)
    replace(runner, train=killed_at(6)).run_next(worker="w")
    assert house.job(job_id).status == "queued"
    assert house.payloads(job_id)[-1]["message"].startswith("worker_lost: killed (try 2 of 3")
    runner.run_next(worker="w")
    assert house.job(job_id).status == "succeeded"
    assert (training_events(house, job_id), student_hash(house, job_id)) == reference


def test_a_checkpoint_ahead_of_the_stored_events_is_not_gone_on_from(
    runner: JobRunner, house: House, reference: tuple[list[tuple[str, int]], str | None]
) -> None:
    """The process was killed between writing its checkpoint and storing what it had said before."""
    job_id = house.submit(max_steps=8, checkpoint_every=2, keep_last=3)
    replace(runner, train=killed_at(7)).run_next(worker="w")
    with house.sessions.begin() as session:
        job = jobs.get(session, job_id)
        told, _ = events.page(session, job_id=job_id, after=0, limit=1000)
        first = next(row.seq for row in told if row.payload["kind"] == "step" and row.payload["step"] > 3)
        lost = [row for row in told if row.seq >= first]
        job.training_events -= sum(is_training_event(parse_event(row.payload)) for row in lost)
        job.last_seq = first - 1
        for row in lost:
            session.delete(row)
    runner.run_next(worker="w")
    assert [told["step"] for told in house.payloads(job_id) if told["kind"] == "resumed"] == [2]
    assert (training_events(house, job_id), student_hash(house, job_id)) == reference


def test_a_clean_retry_starts_from_nothing(
    runner: JobRunner, house: House, reference: tuple[list[tuple[str, int]], str | None]
) -> None:
    job_id = house.submit(max_steps=8, checkpoint_every=2, job={"max_attempts": 1})
    replace(runner, train=killed_at(6)).run_next(worker="w")
    assert house.job(job_id).status == "failed"
    before = len(house.events(job_id))
    with house.sessions.begin() as session:
        job_requests.retry(session, job_id=job_id, from_checkpoint=False, now=datetime.now(UTC))
        house.store.delete(jobs.checkpoints_key(job_id))
    runner.run_next(worker="w")
    told = [parse_event(row.payload) for row in house.events(job_id)[before:]]
    assert [(event.kind, event.step) for event in told if is_training_event(event)] == reference[0]
    assert not any(isinstance(event, Resumed) for event in told)
    assert student_hash(house, job_id) == reference[1]


def test_the_time_limit_ends_a_job_and_keeps_its_checkpoint(runner: JobRunner, house: House) -> None:
    job_id = house.submit(max_steps=100_000, job={"max_hours": 1.0})
    with house.sessions.begin() as session:
        jobs.get(session, job_id).used_s = 3600 - 2.0  # two seconds are left
    runner.run_next(worker="w")
    job = house.job(job_id)
    assert (job.status, job.error_code) == ("failed", "time_limit")
    assert "checkpoint is kept" in job.error_message
    assert house.store.files(jobs.checkpoints_key(job_id))


def test_a_full_disk_pauses_the_job_and_loses_nothing(
    runner: JobRunner, house: House, reference: tuple[list[tuple[str, int]], str | None]
) -> None:
    def full(config: DistillConfig, *, emit: Emit, **rest: Any) -> TrainedStudent:
        def emit_until(event: Event) -> None:
            if isinstance(event, StepDone) and event.step == 5:
                raise OSError(errno.ENOSPC, "No space left on device")
            emit(event)

        return train_here(config, emit=emit_until, **rest)

    job_id = house.submit(max_steps=8, checkpoint_every=2)
    replace(runner, train=full).run_next(worker="w")
    job = house.job(job_id)
    assert (job.status, job.error_code, job.failures) == ("paused", "disk_full", 0)
    assert job.disk_needed_bytes > 0
    with house.sessions.begin() as session:
        job_requests.resume(session, job_id=job_id, now=datetime.now(UTC))
    runner.run_next(worker="w")
    assert (training_events(house, job_id), student_hash(house, job_id)) == reference


def test_a_job_that_does_not_fit_is_not_taken(runner: JobRunner, house: House) -> None:
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
    assert runner.run_next(worker="small") is None
    assert runner.run_next(worker="unknown") == job_id


def test_out_of_memory_says_what_there_was_and_what_to_lower(runner: JobRunner, house: House) -> None:
    def train(config: DistillConfig, **_: Any) -> TrainedStudent:
        raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 24.00 GiB")

    job_id = house.submit(batch_size=8, job={"memory_bytes": 31 * 2**30})
    replace(runner, train=train).run_next(worker="w")
    job = house.job(job_id)
    assert (job.status, job.error_code) == ("failed", "out_of_memory")
    for words in ("20.00 GiB", "24.00 GiB", "31 GiB", "training.batch_size from 8 to 4", "accumulation from 1 to 2"):
        assert words in job.error_message
