"""Nothing stays lost: unheard messages are repeated, dead workers' work is queued again."""

from __future__ import annotations

import threading
import time

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from app.core.compare_schemas import ChatMessage, ComparisonIn
from app.core.db import comparisons, jobs, workers
from app.core.queue import RecordingQueue
from app.deps import Services
from app.sweeper import Sweeper
from tests.app.conftest import Clock, make_config

Sessions = sessionmaker[Session]


@pytest.fixture
def sweeper(services: Services, clock: Clock) -> Sweeper:
    return Sweeper(sessions=services.sessions, doorbell=services.doorbell, lease_s=60, sweep_s=5, clock=clock)


@pytest.fixture
def waiting(sessions: Sessions, clock: Clock) -> tuple[str, str]:
    """Ids of a queued job and a queued comparison that nobody was told of."""
    request = ComparisonIn(model_ids=["mdl_1"], messages=[ChatMessage(role="user", content="hi")])
    with sessions.begin() as session:
        job = jobs.create(session, name="a", config=make_config(), priority=0, now=clock())
        return job.id, comparisons.create(session, request=request, now=clock()).id


def test_what_nobody_heard_of_is_announced(
    sweeper: Sweeper, queue: RecordingQueue, clock: Clock, waiting: tuple[str, str]
) -> None:
    sweeper.sweep()
    assert queue.announced == []  # the request itself is about to announce it
    clock.advance(11)
    sweeper.sweep()
    both = [("stillhouse.train", waiting[0]), ("stillhouse.compare", waiting[1])]
    assert queue.announced == both
    sweeper.sweep()
    assert queue.announced == both


def test_a_broker_that_was_away_is_tried_again(
    sweeper: Sweeper, queue: RecordingQueue, clock: Clock, waiting: tuple[str, str]
) -> None:
    clock.advance(11)
    queue.fail = True
    sweeper.sweep()
    queue.fail = False
    sweeper.sweep()
    assert len(queue.announced) == 2


def test_work_of_dead_workers_is_queued_again_and_announced_at_once(
    sweeper: Sweeper, queue: RecordingQueue, clock: Clock, sessions: Sessions, waiting: tuple[str, str]
) -> None:
    with sessions.begin() as session:
        jobs.claim_next(session, worker="dead", now=clock())
        comparisons.claim_next(session, worker="dead", now=clock())
    clock.advance(59)
    sweeper.sweep()
    assert queue.announced == []
    clock.advance(2)
    sweeper.sweep()
    assert queue.announced == [("stillhouse.train", waiting[0]), ("stillhouse.compare", waiting[1])]
    with sessions.begin() as session:
        again = jobs.claim_next(session, worker="alive", now=clock())
        assert again is not None
        assert (again.job_id, again.attempt) == (waiting[0], 2)


def test_a_job_that_waits_for_space_goes_on_when_there_is_enough(
    services: Services, queue: RecordingQueue, clock: Clock, sessions: Sessions, waiting: tuple[str, str]
) -> None:
    free: list[int | None] = [None]
    sweeper = Sweeper(
        sessions=sessions,
        doorbell=services.doorbell,
        lease_s=60,
        sweep_s=5,
        clock=clock,
        free_bytes=lambda: free[0],
    )
    full = {"status": "paused", "code": "disk_full", "message": "m", "disk_needed_bytes": 100}
    with sessions.begin() as session:
        jobs.claim_next(session, worker="w", now=clock())
        jobs.finish(session, job_id=waiting[0], attempt=1, now=clock(), **full)
    for free[0] in (None, 99):  # an object store does not say
        sweeper.sweep()
        assert queue.announced == []
    free[0] = 100
    sweeper.sweep()
    assert queue.announced == [("stillhouse.train", waiting[0])]


def test_a_job_that_fits_no_worker_says_so(
    sweeper: Sweeper, clock: Clock, sessions: Sessions, waiting: tuple[str, str]
) -> None:
    def reason() -> str | None:
        sweeper.sweep()
        with sessions.begin() as session:
            return jobs.as_shape(jobs.get(session, waiting[0])).waiting_reason

    def report(memory_bytes: int, queue: str) -> None:
        about = {"host": "h", "pid": 1, "device": "cpu", "versions": {}, "started_at": clock()}
        worker = workers.WorkerReport(name=f"w@{queue}", queue=queue, memory_bytes=memory_bytes, **about)
        with sessions.begin() as session:
            workers.report(session, worker, now=clock())

    with sessions.begin() as session:
        jobs.get(session, waiting[0]).memory_bytes = 31 * 2**30
    report(80 * 2**30, "comparing")
    assert reason() == "no training worker reports itself"
    report(24 * 2**30, "training")
    assert reason() == "needs 31 GiB, the largest worker has 24 GiB"
    report(80 * 2**30, "training")
    assert reason() is None
    clock.advance(61)  # it is not heard of any more
    assert reason() == "no training worker reports itself"


def test_the_thread_sweeps_survives_errors_and_ends(services: Services, queue: RecordingQueue, clock: Clock) -> None:
    sweeper = Sweeper(sessions=services.sessions, doorbell=services.doorbell, lease_s=60, sweep_s=0.01, clock=clock)
    with services.engine.begin() as connection:
        connection.execute(text("ALTER TABLE comparisons RENAME TO hidden"))
    sweeper.start()
    time.sleep(0.1)  # several sweeps fail
    with services.engine.begin() as connection:
        connection.execute(text("ALTER TABLE hidden RENAME TO comparisons"))
    with services.sessions.begin() as session:
        jobs.create(session, name="a", config=make_config(), priority=0, now=clock())
    clock.advance(1)
    deadline = time.monotonic() + 10
    while not queue.announced and time.monotonic() < deadline:
        time.sleep(0.01)
    sweeper.stop()
    assert len(queue.announced) == 1
    assert not any(thread.name == "sweeper" for thread in threading.enumerate())
