"""Workers report themselves, are lost when they stop, and leave."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from app.core.db import jobs, workers
from app.core.db.workers import WorkerReport
from app.core.schemas import WorkerOut
from tests.app.conftest import Clock, at_once, make_config

Sessions = sessionmaker[Session]


def worker(clock: Clock, name: str = "training@a", *, pid: int = 1, queue: str = "training") -> WorkerReport:
    return WorkerReport(
        name=name,
        queue=queue,
        host="a",
        pid=pid,
        device="NVIDIA H200",
        memory_bytes=150_754_820_096,
        versions={"python": "3.11.2", "torch": "2.13.0"},
        started_at=clock(),
    )


def report(sessions: Sessions, clock: Clock, said: WorkerReport) -> None:
    with sessions.begin() as session:
        workers.report(session, said, now=clock())


def listed(sessions: Sessions, clock: Clock) -> list[WorkerOut]:
    with sessions.begin() as session:
        return workers.list_all(session, now=clock(), lease_s=60)


def test_a_worker_is_listed_as_it_reported_itself(sessions: Sessions, clock: Clock) -> None:
    said = worker(clock)
    report(sessions, clock, said)
    report(sessions, clock, worker(clock, "comparing@a", pid=2, queue="comparing"))
    clock.advance(10)
    report(sessions, clock, said)
    comparing, training = listed(sessions, clock)
    assert (comparing.name, comparing.queue) == ("comparing@a", "comparing")
    assert training.model_dump() == {
        "name": "training@a",
        "queue": "training",
        "status": "idle",
        "job_id": None,
        "comparison_id": None,
        "device": "NVIDIA H200",
        "memory_bytes": 150_754_820_096,
        "host": "a",
        "pid": 1,
        "versions": {"python": "3.11.2", "torch": "2.13.0"},
        "started_at": said.started_at,
        "heartbeat_at": clock(),
    }


def test_what_a_worker_does_is_what_the_jobs_say(sessions: Sessions, clock: Clock) -> None:
    report(sessions, clock, worker(clock))
    with sessions.begin() as session:
        job_id = jobs.create(session, name="a", config=make_config(), priority=0, now=clock()).id
        jobs.claim_next(session, worker="training@a", now=clock())
    (busy,) = listed(sessions, clock)
    assert (busy.status, busy.job_id) == ("busy", job_id)
    with sessions.begin() as session:
        jobs.finish(session, job_id=job_id, attempt=1, status="succeeded", now=clock())
    (idle,) = listed(sessions, clock)
    assert (idle.status, idle.job_id) == ("idle", None)


def test_a_silent_worker_is_lost_and_leaves_after_a_while(sessions: Sessions, clock: Clock) -> None:
    report(sessions, clock, worker(clock))
    clock.advance(61)
    report(sessions, clock, worker(clock, "training@b"))
    assert [(row.name, row.status) for row in listed(sessions, clock)] == [
        ("training@a", "lost"),
        ("training@b", "idle"),
    ]
    with sessions.begin() as session:
        assert [row.name for row in workers.seen(session, now=clock(), lease_s=60)] == ["training@b"]
        assert workers.seen(session, now=clock(), lease_s=60, queue="comparing") == []
        assert workers.remove_lost(session, now=clock(), older_than_s=60) == ["training@a"]
    assert [row.name for row in listed(sessions, clock)] == ["training@b"]


def test_a_new_process_of_the_same_name_takes_over(sessions: Sessions, clock: Clock) -> None:
    report(sessions, clock, worker(clock, pid=1))
    clock.advance(5)
    report(sessions, clock, worker(clock, pid=2))
    with sessions.begin() as session:
        workers.forget(session, name="training@a", pid=1)  # the old process ends late
    (row,) = listed(sessions, clock)
    assert (row.pid, row.started_at) == (2, clock())
    with sessions.begin() as session:
        workers.forget(session, name="training@a", pid=2)
    assert listed(sessions, clock) == []


def test_simultaneous_reports(sessions: Sessions, clock: Clock) -> None:
    at_once(lambda: report(sessions, clock, replace(worker(clock), pid=3)), 6)
    assert [row.pid for row in listed(sessions, clock)] == [3]


def test_a_lost_worker_may_still_hold_a_job(sessions: Sessions, clock: Clock) -> None:
    """Until the sweeper takes it away, people should see who had it."""
    report(sessions, clock, worker(clock))
    with sessions.begin() as session:
        jobs.create(session, name="a", config=make_config(), priority=0, now=clock())
        jobs.claim_next(session, worker="training@a", now=clock())
        session.execute(text("UPDATE workers SET heartbeat_at = '2020-01-01 00:00:00'"))
    (lost,) = listed(sessions, clock)
    assert lost.status == "lost"
    assert lost.job_id is not None
