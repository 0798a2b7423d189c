"""What the sweeper finds: lost workers, unheard messages, and why a job waits."""

from __future__ import annotations

from app.core.db import job_sweeps, jobs
from tests.app.core.db.desk import Desk, checkpoint

GIB = 2**30


def test_a_heartbeat_keeps_the_lease(desk: Desk) -> None:
    job_id = desk.create()
    desk.claim()
    desk.clock.advance(50)
    assert desk.heartbeat(job_id, 1) is None
    desk.clock.advance(50)
    assert desk.sweep() == []
    assert desk.read(job_id).status == "running"


def test_the_last_lost_worker_fails_the_job(desk: Desk) -> None:
    job_id = desk.create()
    for _ in range(3):
        desk.clock.advance(60)
        assert desk.claim() is not None
        desk.clock.advance(61)
        desk.sweep()
    job = desk.read(job_id)
    assert (job.status, job.error_code, job.attempt) == ("failed", "worker_lost", 3)
    assert desk.claim() is None


def test_workers_that_are_lost_behind_a_checkpoint_do_not_add_up(desk: Desk) -> None:
    job_id = desk.create()
    for attempt in range(1, 8):
        assert desk.claim() is not None
        desk.append(job_id, attempt, checkpoint(attempt))
        desk.clock.advance(61)
        assert desk.sweep() == [job_id]


def test_a_job_that_should_stop_is_not_queued_again(desk: Desk) -> None:
    for what, becomes in (("cancel", "cancelled"), ("pause", "paused")):
        job_id = desk.create()
        desk.claim()
        desk.ask(what, job_id)
        desk.clock.advance(61)
        assert desk.sweep() == []
        assert desk.read(job_id).status == becomes


def unheard(desk: Desk) -> list[str]:
    return desk.do(job_sweeps.unannounced, older_than_s=10)


def test_waiting_jobs_are_announced_again_ever_more_rarely(desk: Desk) -> None:
    job_id = desk.create()
    queued_at, announced = desk.clock(), []
    while len(announced) < 7:
        desk.clock.advance(1)
        if unheard(desk) == [job_id]:
            desk.do(job_sweeps.mark_announced, job_id=job_id)
            announced.append((desk.clock() - queued_at).total_seconds())
    assert announced == [10, 20, 40, 80, 160, 320, 620]


def test_running_jobs_are_not_announced(desk: Desk) -> None:
    desk.create()
    desk.claim()
    desk.clock.advance(1000)
    assert unheard(desk) == []


def test_a_job_that_must_wait_is_announced_when_its_time_has_come(desk: Desk) -> None:
    job_id = desk.create()
    for attempt in (1, 2):
        desk.claim()
        desk.fail(job_id, attempt)
    desk.do(job_sweeps.mark_announced, job_id=job_id)  # whoever heard of it found nothing to do
    desk.clock.advance(9.9)
    assert unheard(desk) == []
    desk.clock.advance(0.2)
    assert unheard(desk) == [job_id]


def reasons(desk: Desk, *, largest: int | None) -> list[str | None]:
    with desk.sessions.begin() as session:
        job_sweeps.note_waiting(session, largest_bytes=largest)
        found, _ = jobs.list_page(session, status="queued", limit=10, after=None)
        session.expire_all()
        return [jobs.as_shape(job).waiting_reason for job in reversed(found)]


def test_a_job_that_fits_no_worker_says_so_until_one_does(desk: Desk) -> None:
    desk.create(memory_bytes=31 * GIB)
    desk.clock.advance(1)
    desk.create(memory_bytes=GIB)
    assert sorted(map(str, reasons(desk, largest=24 * GIB))) == [
        "None",
        "needs 31 GiB, the largest worker has 24 GiB",
    ]
    assert reasons(desk, largest=80 * GIB) == [None, None]
    assert reasons(desk, largest=None) == ["no training worker reports itself"] * 2
    assert reasons(desk, largest=80 * GIB) == [None, None]


def test_other_reasons_stay_and_a_claim_ends_them_all(desk: Desk) -> None:
    job_id = desk.create()
    for attempt in (1, 2):
        desk.claim()
        desk.fail(job_id, attempt)
    assert reasons(desk, largest=None) == reasons(desk, largest=GIB) == ["tried again after a pause of 10 s (hung)"]
    desk.clock.advance(10)
    desk.claim()
    assert desk.read(job_id).waiting_reason is None


def test_jobs_that_wait_for_space_are_found_with_what_they_need(desk: Desk) -> None:
    full, mine = desk.create(), desk.create()
    for _ in range(2):
        desk.claim()
    desk.finish(full, 1, status="paused", code="disk_full", message="m", disk_needed_bytes=5)
    desk.finish(mine, 1, status="paused")
    with desk.sessions.begin() as session:
        assert job_sweeps.waiting_for_space(session) == [(full, 5)]
    job = desk.ask("resume", full)
    assert (job.error_code, job.disk_needed_bytes) == (None, None)
