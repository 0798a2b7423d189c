"""Jobs that are left off and go on: paused, handed back, killed, retried, out of disk. What comes out is, bit for bit,
what a run makes that nothing happened to, and its events tell it without a gap or a double."""

from __future__ import annotations

import errno
import threading
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from app.core.db import events, job_requests, jobs
from app.core.events import Emit, Event, Resumed, StepDone, is_training_event, parse_event
from app.core.job_config import DistillConfig
from tests.worker.training import Course, House, killed_at, student_hash, training_events, waiting_for_a_wish
from worker.jobs import JobRunner
from worker.training import TrainedStudent, train_here


def test_paused_and_resumed_is_as_if_nothing_had_happened(
    job_runner: JobRunner, house: House, reference: Course
) -> None:
    job_id = house.submit(max_steps=8, checkpoint_every=0)
    with house.once_it_trains(job_id, lambda s: job_requests.request_pause(s, job_id=job_id, now=datetime.now(UTC))):
        replace(job_runner, train=waiting_for_a_wish(job_runner.train)).run_next(worker="w")
    paused = house.job(job_id)
    assert (paused.status, paused.pause_requested, paused.failures) == ("paused", False, 0)
    assert job_runner.run_next(worker="w") is None
    with house.sessions.begin() as session:
        job_requests.resume(session, job_id=job_id, now=datetime.now(UTC))
    assert job_runner.run_next(worker="w") == job_id
    assert (house.job(job_id).status, house.job(job_id).attempt) == ("succeeded", 2)
    assert (training_events(house, job_id), student_hash(house, job_id)) == reference
    assert "resumed" in [told["kind"] for told in house.payloads(job_id)]


def test_a_worker_that_is_to_end_hands_its_job_back(job_runner: JobRunner, house: House, reference: Course) -> None:
    job_id, leaving = house.submit(max_steps=8), threading.Event()
    with house.once_it_trains(job_id, lambda _: leaving.set()):
        replace(job_runner, leaving=leaving.is_set, train=waiting_for_a_wish(job_runner.train)).run_next(worker="old")
    handed_back = house.job(job_id)
    assert (handed_back.status, handed_back.failures) == ("queued", 0)
    assert "shut down" in house.payloads(job_id)[-1]["message"]
    assert job_runner.run_next(worker="new") == job_id
    assert (training_events(house, job_id), student_hash(house, job_id)) == reference


@pytest.mark.parametrize("every", [1, 3, 100])
def test_a_killed_run_goes_on_without_gap_or_double(
    job_runner: JobRunner, house: House, reference: Course, every: int
) -> None:
    job_id = house.submit(max_steps=8, checkpoint_every=every)
    replace(job_runner, train=killed_at(6)).run_next(worker="w")
    assert house.job(job_id).status == "queued"
    assert house.payloads(job_id)[-1]["message"].startswith("worker_lost: killed (try 2 of 3")
    job_runner.run_next(worker="w")
    assert house.job(job_id).status == "succeeded"
    assert (training_events(house, job_id), student_hash(house, job_id)) == reference


def test_a_checkpoint_ahead_of_the_stored_events_is_not_gone_on_from(
    job_runner: JobRunner, house: House, reference: Course
) -> None:
    """The process was killed between writing its checkpoint and storing what it had said before."""
    job_id = house.submit(max_steps=8, checkpoint_every=2, keep_last=3)
    replace(job_runner, train=killed_at(7)).run_next(worker="w")
    with house.sessions.begin() as session:
        job = jobs.get(session, job_id)
        told, _ = events.page(session, job_id=job_id, after=0, limit=1000)
        first = next(row.seq for row in told if row.payload["kind"] == "step" and row.payload["step"] > 3)
        lost = [row for row in told if row.seq >= first]
        job.training_events -= sum(is_training_event(parse_event(row.payload)) for row in lost)
        job.last_seq = first - 1
        for row in lost:
            session.delete(row)
    job_runner.run_next(worker="w")
    assert [told["step"] for told in house.payloads(job_id) if told["kind"] == "resumed"] == [2]
    assert (training_events(house, job_id), student_hash(house, job_id)) == reference


def test_a_clean_retry_starts_from_nothing(job_runner: JobRunner, house: House, reference: Course) -> None:
    job_id = house.submit(max_steps=8, checkpoint_every=2, job={"max_attempts": 1})
    replace(job_runner, train=killed_at(6)).run_next(worker="w")
    assert house.job(job_id).status == "failed"
    before = len(house.events(job_id))
    with house.sessions.begin() as session:
        job_requests.retry(session, job_id=job_id, from_checkpoint=False, now=datetime.now(UTC))
        house.store.delete(jobs.checkpoints_key(job_id))
    job_runner.run_next(worker="w")
    told = [parse_event(row.payload) for row in house.events(job_id)[before:]]
    assert [(event.kind, event.step) for event in told if is_training_event(event)] == reference[0]
    assert not any(isinstance(event, Resumed) for event in told)
    assert student_hash(house, job_id) == reference[1]


def test_a_full_disk_pauses_the_job_and_loses_nothing(job_runner: JobRunner, house: House, reference: Course) -> None:
    def full(config: DistillConfig, *, emit: Emit, **rest: Any) -> TrainedStudent:
        def emit_until(event: Event) -> None:
            if isinstance(event, StepDone) and event.step == 5:
                raise OSError(errno.ENOSPC, "No space left on device")
            emit(event)

        return train_here(config, emit=emit_until, **rest)

    job_id = house.submit(max_steps=8, checkpoint_every=2)
    replace(job_runner, train=full).run_next(worker="w")
    job = house.job(job_id)
    assert (job.status, job.error_code, job.failures) == ("paused", "disk_full", 0)
    assert job.disk_needed_bytes > 0
    with house.sessions.begin() as session:
        job_requests.resume(session, job_id=job_id, now=datetime.now(UTC))
    job_runner.run_next(worker="w")
    assert (training_events(house, job_id), student_hash(house, job_id)) == reference
