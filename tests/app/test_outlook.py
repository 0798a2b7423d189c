"""Time and disk before a job runs: a count worked out by hand, and speeds from jobs that finished."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from app.core.db import datasets, jobs, models
from app.core.db.tables import Dataset, Job, Worker
from app.core.job_config import DistillConfig
from app.deps import Services
from app.outlook import ASSUMED, Work, disk_bytes, look_ahead, operations
from tests.app.conftest import Clock, make_config

TEACHER, STUDENT = 1000, 600
SECTIONS: dict[str, Any] = {
    "recipe": "kd",
    "data": {"kind": "dataset", "dataset_id": "ds_1", "dev_rows": 5, "max_response_tokens": 7},
    "training": {"max_steps": 10, "batch_size": 2, "gradient_accumulation": 3},
    "evaluation": {"every_steps": 4, "rouge_rows": 3},
}


def work(config: DistillConfig, *, missing: int = 0) -> Work:
    return Work(
        config=config,
        teacher_parameters=TEACHER,
        student_parameters=STUDENT,
        row_tokens=20,
        rows=61,  # one more than are visited
        missing_responses=missing,
    )


def test_operations_by_hand() -> None:
    config = make_config(**SECTIONS, sampling={"kind": "ground_truth", "max_new_tokens": 11})
    training = 60 * 20 * (6 * 600 + 2 * 1000)
    evaluations = 4 * (5 * 20 * 2 * 600 + 3 * 11 * 2 * 600) + 5 * 20 * 2 * 1000
    assert operations(work(config)) == training + evaluations
    spared = (60 - 52) * 20 * 2 * 1000  # the other 52 rows are read once, ahead of 60 visits
    assert operations(work(config, missing=9)) == training + evaluations + 9 * 7 * 2 * 1000 - spared
    sft = make_config(**SECTIONS | {"recipe": "sft"}, sampling={"kind": "ground_truth", "max_new_tokens": 11})
    assert operations(work(config)) - operations(work(sft)) == 60 * 20 * 2 * 1000


def test_sampling_and_correction_by_hand() -> None:
    on_policy = {"kind": "on_policy", "max_new_tokens": 10}

    def counted(sampling: dict[str, Any], **scrg: Any) -> float:
        return operations(work(make_config(**SECTIONS, sampling=sampling, scrg=scrg)))

    given = counted({"kind": "ground_truth", "max_new_tokens": 10})
    plain = counted(on_policy, rounds=0)
    assert plain - given == 60 * 10 * 2 * 600
    half = 60 * (2 * 1000 * 20 + 600 * 10)
    assert counted(on_policy, rounds=2, position="largest_kl") - plain == 2 * half
    # the first mismatch of what the round before left: 1 + 1/2 + 1/4 halves, and hardly more however many rounds
    assert counted(on_policy, rounds=3, position="first") - plain == 1.75 * half
    assert counted(on_policy, rounds=12, position="first") - plain < 2 * half


def test_rows_to_choose_from_by_hand() -> None:
    """A pass of the student over each; the teacher's is spared where its states are kept, and then it reads 61 rows."""

    def counted(sampling: dict[str, Any], **data: Any) -> float:
        sections = SECTIONS | {"data": {**SECTIONS["data"], **data}}
        return operations(work(make_config(**sections, sampling=sampling, scrg={"rounds": 0})))

    mixed = {"kind": "mixed", "student_fraction": 0.5, "max_new_tokens": 10}
    students, teachers = 2 * 600 * 20, 2 * 1000 * 20
    off = {"teacher_states": "off", "responses": "given"}
    assert counted({**mixed, "candidates": 3}, **off) - counted(mixed, **off) == 180 * (students + teachers)
    # 30 visits and 180 looks spare the teacher as many passes
    kept = counted({**mixed, "candidates": 3}, responses="given") - counted(mixed, **off)
    assert kept == 180 * students + (61 - 30) * teachers
    # prompts without a response: the student answers those that it may write for, 30 of 60 sequences
    written = {**off, "responses": "student"}
    answered = 30 * 3 * (2 * 600 * 10 + teachers)
    assert counted({**mixed, "candidates": 3}, **written) - counted(mixed, **written) == answered + 90 * (
        students + teachers
    )


def test_disk_is_the_student_and_all_checkpoints_at_once() -> None:
    found = disk_bytes(make_config(training={"keep_last": 2}, evaluation={"select": "best"}), student_parameters=100)
    assert found == {"student": 400, "checkpoints": 4 * 1200, "states": 0, "total": 5200}


def test_kept_states_spare_the_teachers_passes_and_take_disk() -> None:
    """61 rows of which 60 are visited: worth it only where the teacher writes some of them."""
    config = make_config(**SECTIONS, sampling={"kind": "ground_truth", "max_new_tokens": 11})
    off = make_config(**SECTIONS | {"data": {**SECTIONS["data"], "teacher_states": "off"}}, sampling=config.sampling)
    assert operations(work(config)) == operations(work(off))
    assert operations(work(off, missing=9)) - operations(work(config, missing=9)) == (60 - 52) * 20 * 2 * 1000
    assert disk_bytes(config, student_parameters=100, states=7)["total"] == 5200 + 7


@pytest.fixture
def dataset(services: Services, clock: Clock) -> Dataset:
    """Twenty rows of some sixty bytes of text each."""
    rows = [{"messages": [{"role": "user", "content": "a" * 40}], "response": "b" * 20} for _ in range(20)]
    with services.store.open("datasets/ds_1.jsonl", "wb") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows).encode())
    with services.sessions.begin() as session:
        return datasets.create(
            session, dataset_id="ds_1", name="d", format="messages", rows=20, rows_with_response=20, problems=[],
            sha256="ab", now=clock(),
        )  # fmt: skip


def ahead(services: Services, dataset: Dataset, config: DistillConfig) -> Any:
    with services.sessions.begin() as session:
        return look_ahead(
            session,
            services.store,
            config=config,
            dataset=dataset,
            teacher_parameters=TEACHER,
            student_parameters=STUDENT,
            state_bytes=10,
            states_limit_bytes=10_000,
        )


def finished_job(services: Services, clock: Clock, config: DistillConfig, *, seconds: float) -> None:
    with services.sessions.begin() as session:
        job = jobs.create(session, name="past", config=config, priority=0, now=clock())
        job.teacher_id = models.ensure_teacher(session, source="t", parameters=TEACHER, now=clock()).id
        job.untrained_id = models.create_untrained(
            session, job_id=job.id, name="u", source="t", parameters=STUDENT, now=clock()
        ).id
        job_id = job.id
    with services.sessions.begin() as session:
        row = session.get(Job, job_id)
        assert row is not None
        row.status, row.attempt_started_at = "succeeded", clock()
        row.finished_at, row.used_s = clock() + timedelta(seconds=seconds - 10), 10.0


def test_a_first_job_gets_a_guess_that_says_so(services: Services, dataset: Dataset, clock: Clock) -> None:
    config = make_config(**SECTIONS)
    guess = ahead(services, dataset, config)
    assert guess.basis.startswith("A guess: no job of this kind has finished here")
    assert guess.free_bytes > 0
    with services.sessions.begin() as session:
        session.add(
            Worker(
                name="w", queue="training", host="h", pid=1, device="NVIDIA H200", memory_bytes=1, versions={},
                started_at=clock(), heartbeat_at=clock(),
            )
        )  # fmt: skip
    faster = ahead(services, dataset, config)
    assert guess.seconds / faster.seconds == pytest.approx(ASSUMED["accelerator"] / ASSUMED["cpu"])


def test_a_job_like_the_last_one_takes_as_long(services: Services, dataset: Dataset, clock: Clock) -> None:
    config = make_config(**SECTIONS)
    finished_job(services, clock, config, seconds=120)
    twice = make_config(**SECTIONS | {"training": {**SECTIONS["training"], "max_steps": 20}})
    assert ahead(services, dataset, config).seconds == pytest.approx(120)
    assert 150 < ahead(services, dataset, twice).seconds < 240
    assert "from the last finished job of this kind" in ahead(services, dataset, config).basis


def test_the_disk_of_kept_states_is_theirs_at_their_longest(services: Services, dataset: Dataset) -> None:
    """Twenty rows of seven tokens and ten bytes each, unless nobody reads them or they are too many."""
    assert ahead(services, dataset, make_config(**SECTIONS)).disk_bytes["states"] == 20 * 7 * 10
    off = {**SECTIONS, "data": {**SECTIONS["data"], "teacher_states": "off"}}
    many = {**SECTIONS, "data": {**SECTIONS["data"], "responses": "teacher", "max_response_tokens": 60}}
    for sections in (off, many, SECTIONS | {"recipe": "sft"}):
        assert ahead(services, dataset, make_config(**sections)).disk_bytes["states"] == 0


def test_jobs_that_sample_differently_or_lost_their_data_say_nothing(
    services: Services, dataset: Dataset, clock: Clock
) -> None:
    config = make_config(**SECTIONS)
    finished_job(services, clock, make_config(**SECTIONS | {"recipe": "mgsr"}), seconds=120)
    gone = {**SECTIONS, "data": {**SECTIONS["data"], "dataset_id": "ds_gone"}}
    finished_job(services, clock, make_config(**gone), seconds=120)
    assert ahead(services, dataset, config).basis.startswith("A guess")
