"""A job's life with real processes, on both back ends: two training workers that are killed, stopped and shut down.

Whatever happens, the student is bit for bit that of a run to which nothing happened, and the run says each thing once.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from app.core.events import is_training_event, parse_event
from tests.e2e.test_main_job import all_events, compare, submit
from tests.running_service import RunningService, running_service
from tests.services import fresh_database, redis_database
from tests.waiting import is_alive, until

pytestmark = pytest.mark.slow
STEPS = 90
TRAINING = {"max_steps": STEPS, "batch_size": 2, "checkpoint_every": 10}
WORKERS = ("training-0", "training-1")
Course = tuple[list[tuple[str, int]], str]


@pytest.fixture(scope="module", params=["embedded", pytest.param("postgres+redis", marks=pytest.mark.service)])
def house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """API, comparing worker and two training workers whose processes a test may kill."""
    home, how = tmp_path_factory.mktemp("home"), {"without": ["ui"], "training_workers": 2, "may_be_killed": True}
    if request.param == "embedded":
        with running_service(home, **how) as running:
            yield running
    else:
        broker_url = redis_database()
        with (
            fresh_database() as database_url,
            running_service(home, database_url=database_url, broker_url=broker_url, **how) as running,
        ):
            yield running


def start(house: RunningService, teacher: Path, rows: Path) -> str:
    return submit(house, teacher, rows, steps=STEPS, training=TRAINING)


def course(house: RunningService, job_id: str) -> Course:
    """What the run said of its course, in an unbroken order, and the student's digest."""
    rows = all_events(house, job_id)
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    told = [parse_event(row["event"]) for row in rows]
    student = house.get(f"/v1/models/{house.get(f'/v1/jobs/{job_id}')['student_id']}")
    return [(event.kind, event.step) for event in told if is_training_event(event)], student["weights_sha256"]


@pytest.fixture(scope="module")
def undisturbed(house: RunningService, tiny_teacher: Path, tiny_rows: Path) -> Course:
    job_id = start(house, tiny_teacher, tiny_rows)
    assert house.wait_for_end(job_id)["status"] == "succeeded"
    return course(house, job_id)


def wait_for_step(house: RunningService, job_id: str, step: int = 15) -> str:
    """The name of the process that trains it, once it is past that step: its last checkpoint is behind it."""
    house.until(lambda: house.get(f"/v1/jobs/{job_id}")["step"] >= step)
    return house.get(f"/v1/jobs/{job_id}")["worker"].split("@")[0]


def group(house: RunningService, name: str) -> list[psutil.Process]:
    return [psutil.Process(house.supervisor.pids()[name]), *house.descendants(name)]


def statuses(house: RunningService, job_id: str) -> list[str]:
    return [row["event"]["status"] for row in all_events(house, job_id) if row["event"]["kind"] == "status"]


@pytest.mark.parametrize("who", ["training process", "worker"])
def test_killed_in_the_middle(
    house: RunningService, undisturbed: Course, tiny_teacher: Path, tiny_rows: Path, who: str
) -> None:
    """The worker sees its training process die; only the sweeper misses a dead worker."""
    job_id = start(house, tiny_teacher, tiny_rows)
    processes = group(house, wait_for_step(house, job_id))
    processes[-1 if who == "training process" else 0].kill()
    job = house.wait_for_end(job_id)
    assert (job["status"], job["attempt"]) == ("succeeded", 2)
    assert course(house, job_id) == undisturbed
    assert statuses(house, job_id) == ["queued", "running", "queued", "running", "succeeded"]
    assert not is_alive(processes[-1].pid)


def test_paused_and_resumed(house: RunningService, undisturbed: Course, tiny_teacher: Path, tiny_rows: Path) -> None:
    job_id = start(house, tiny_teacher, tiny_rows)
    processes = group(house, wait_for_step(house, job_id))
    assert house.post(f"/v1/jobs/{job_id}/pause")["pause_requested"]
    house.until(lambda: house.get(f"/v1/jobs/{job_id}")["status"] == "paused")
    assert not is_alive(processes[-1].pid)  # the device is free before the status says so
    kept = house.get(f"/v1/jobs/{job_id}/checkpoints")["data"]
    assert kept[0]["step"] == house.get(f"/v1/jobs/{job_id}")["step"]
    house.post(f"/v1/jobs/{job_id}/resume")
    assert house.wait_for_end(job_id)["status"] == "succeeded"
    assert course(house, job_id) == undisturbed


def test_cancel_frees_the_memory_before_the_status_says_so(
    house: RunningService, tiny_teacher: Path, tiny_rows: Path
) -> None:
    job_id = submit(house, tiny_teacher, tiny_rows, steps=100_000)
    processes = group(house, wait_for_step(house, job_id, 1))
    house.post(f"/v1/jobs/{job_id}/cancel")
    house.until(lambda: house.get(f"/v1/jobs/{job_id}")["status"] == "cancelled")
    assert not is_alive(processes[-1].pid)
    assert is_alive(processes[0].pid)


def test_a_worker_that_is_shut_down_hands_its_job_back(
    house: RunningService, undisturbed: Course, tiny_teacher: Path, tiny_rows: Path
) -> None:
    job_id = start(house, tiny_teacher, tiny_rows)
    processes = group(house, wait_for_step(house, job_id))
    processes[0].terminate()
    job = house.wait_for_end(job_id)
    assert (job["status"], job["attempt"], job["failures"]) == ("succeeded", 2, 0)
    messages = [row["event"].get("message") for row in all_events(house, job_id) if row["event"]["kind"] == "status"]
    assert "handed back by a worker that is shut down" in messages
    assert course(house, job_id) == undisturbed
    assert not any(is_alive(process.pid) for process in processes)


@contextmanager
def stopped(processes: list[psutil.Process]) -> Iterator[None]:
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            if is_alive(process.pid):
                process.send_signal(signal.SIGCONT)


def test_a_worker_that_wakes_up_after_its_lease_stops_and_writes_nothing(
    house: RunningService, undisturbed: Course, tiny_teacher: Path, tiny_rows: Path
) -> None:
    job_id = start(house, tiny_teacher, tiny_rows)
    processes = group(house, wait_for_step(house, job_id))
    with stopped(processes):
        house.until(lambda: house.get(f"/v1/jobs/{job_id}")["attempt"] == 2)
    until(lambda: not is_alive(processes[-1].pid))
    job = house.wait_for_end(job_id)
    assert (job["status"], job["attempt"]) == ("succeeded", 2)
    assert course(house, job_id) == undisturbed
    attempts = [row["attempt"] for row in all_events(house, job_id)]
    assert attempts == sorted(attempts)  # nothing of the first attempt after the second began
    folder = house.settings.home_folder / "artifacts" / "checkpoints" / job_id
    assert [path.name for path in folder.iterdir() if any(path.rglob("manifest.json"))] == ["2"]


def test_comparisons_do_not_wait_for_trainings(house: RunningService, tiny_teacher: Path, tiny_rows: Path) -> None:
    running = [submit(house, tiny_teacher, tiny_rows, steps=100_000) for _ in WORKERS]
    waiting = submit(house, tiny_teacher, tiny_rows, steps=100_000)
    for job_id in running:
        wait_for_step(house, job_id, 1)
    job = house.get(f"/v1/jobs/{waiting}")
    assert job["status"] == "queued"
    compare(house, [job["teacher_id"], job["untrained_id"]])
    for job_id in (waiting, *running):
        house.post(f"/v1/jobs/{job_id}/cancel")
        house.wait_for_end(job_id)


def test_no_process_of_this_house_outlives_its_worker(house: RunningService) -> None:
    """Every training process left is a child of a worker that lives."""
    workers = {house.supervisor.pids()[name] for name in WORKERS}
    for process in psutil.process_iter(["cmdline", "ppid", "environ"]):
        environment = process.info["environ"] or {}
        mine = environment.get("STILLHOUSE_HOME") == os.environ["STILLHOUSE_HOME"]
        if mine and "worker.training_child" in (process.info["cmdline"] or []):
            assert process.info["ppid"] in workers
