"""A worker's hold on jobs: claims, fences, and every way in which an attempt ends."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path

import pytest
from sqlalchemy import text

from app.core.db import curves, jobs
from app.core.db.migrate import upgrade
from app.core.db.session import make_engine
from app.core.errors import AttemptLost, Conflict, NotFound
from app.core.events import Warned
from tests.app.conftest import at_once, make_config
from tests.app.core.db.desk import Desk, checkpoint, step_done


def test_a_job_runs_once_and_says_so(desk: Desk) -> None:
    job_id = desk.create()
    claimed = desk.claim()
    assert claimed is not None
    assert (claimed.job_id, claimed.attempt, claimed.config) == (job_id, 1, make_config().model_dump(mode="json"))
    assert (claimed.training_events, claimed.seconds_left) == (0, None)
    assert desk.claim() is None
    desk.finish(job_id, 1)
    assert desk.status_names(job_id) == ["queued", "running", "succeeded"]
    job = desk.read(job_id)
    assert (job.status, job.worker, job.max_steps) == ("succeeded", "w", 1000)
    assert job.finished_at == desk.clock()
    assert job.finished_at.tzinfo is UTC


def test_priority_goes_before_age(desk: Desk) -> None:
    old, urgent, new, least = (desk.create(priority=priority) for priority in (0, 5, 0, -1))
    # Identifiers made within one millisecond sort at random, so age decides between `old` and `new` only as ids do.
    first, second = sorted([old, new])
    order = [claimed.job_id for _ in range(4) if (claimed := desk.claim())]
    assert order == [urgent, first, second, least]


def test_many_claimers_never_get_the_same_job(desk: Desk) -> None:
    wanted = {desk.create() for _ in range(24)}

    def claim_all() -> list[str]:
        mine = []
        while (claimed := desk.claim()) is not None:
            mine.append(claimed.job_id)
        return mine

    claimed = [job_id for mine in at_once(claim_all, 8) for job_id in mine]
    assert len(claimed) == 24
    assert set(claimed) == wanted


def test_a_job_that_does_not_fit_is_left_to_a_larger_worker(desk: Desk) -> None:
    large = desk.create(priority=1, memory_bytes=31 * 2**30)
    small, unknown = desk.create(memory_bytes=2**30), desk.create()
    taken = [claimed.job_id for _ in range(3) if (claimed := desk.claim(memory_bytes=24 * 2**30))]
    assert sorted(taken) == sorted([small, unknown])
    claimed = desk.claim(memory_bytes=80 * 2**30)
    assert claimed is not None
    assert (claimed.job_id, claimed.memory_bytes) == (large, 31 * 2**30)


def test_failure_is_kept_with_its_reason(desk: Desk) -> None:
    job_id = desk.create()
    desk.claim()
    desk.finish(job_id, 1, status="failed", code="out_of_memory", message="lower batch_size")
    shape = jobs.as_shape(desk.read(job_id))
    assert shape.error is not None
    assert (shape.status, shape.error.code, shape.error.message) == ("failed", "out_of_memory", "lower batch_size")


def test_a_replaced_worker_cannot_write(desk: Desk) -> None:
    job_id = desk.create()
    desk.claim("dead?")
    desk.clock.advance(61)
    assert desk.sweep() == [job_id]
    for attempt in (1, 2):  # 1 was taken away, 2 is not claimed yet
        for write in (desk.heartbeat, desk.finish, desk.fail):
            with pytest.raises(AttemptLost):
                write(job_id, attempt)
        with pytest.raises(AttemptLost):
            desk.append(job_id, attempt, step_done(1))
    again = desk.claim("alive")
    assert again is not None
    assert again.attempt == 2
    with pytest.raises(AttemptLost):
        desk.finish(job_id, 1)
    desk.finish(job_id, 2)
    assert desk.status_names(job_id) == ["queued", "running", "queued", "running", "succeeded"]


def test_a_later_attempt_goes_on_from_what_is_stored(desk: Desk) -> None:
    job_id = desk.create()
    desk.claim()
    desk.append(job_id, 1, step_done(1, eta_s=30, loss=1.0), Warned(code="w", message="m", step=1))
    desk.append(job_id, 1, step_done(2, eta_s=20, loss=2.0), Warned(code="w", message="of no step"), checkpoint(2))
    running = jobs.as_shape(desk.read(job_id))
    assert (running.step, running.tokens, running.eta_s) == (2, 10, 20)
    desk.finish(job_id, 1, status="queued", message="handed back")
    waiting = jobs.as_shape(desk.read(job_id))
    assert (waiting.step, waiting.tokens, waiting.eta_s) == (2, 10, None)
    again = desk.claim()
    assert again is not None
    assert (again.attempt, again.training_events) == (2, 3)
    with desk.sessions.begin() as session:
        assert curves.read(session, job_id=job_id, names=None, max_points=100)[0].points == [(1, 1.0), (2, 2.0)]


def test_handing_back_is_no_failure_and_goes_before_younger_jobs(desk: Desk) -> None:
    job_id = desk.create()
    desk.claim()
    desk.clock.advance(100)
    desk.finish(job_id, 1, status="queued", message="its worker is shut down")
    desk.clock.advance(1)
    younger = desk.create()
    job = desk.read(job_id)
    assert (job.failures, job.used_s, job.error_code, job.announced_at) == (0, 100, None, None)
    assert [claimed.job_id for _ in range(2) if (claimed := desk.claim())] == [job_id, younger]


def test_wishes_come_before_an_attempts_own_ending(desk: Desk) -> None:
    """Cancel wins over a pause, a pause over queueing again; what succeeded or failed for good did so."""
    for asked, ending, becomes in [
        (["pause", "cancel"], "paused", "cancelled"),
        (["cancel"], "queued", "cancelled"),
        (["pause"], "queued", "paused"),
        (["pause"], "succeeded", "succeeded"),
        (["cancel"], "failed", "failed"),
    ]:
        job_id = desk.create()
        desk.claim()
        for what in asked:
            desk.ask(what, job_id)
        desk.finish(job_id, 1, status=ending)
        job = desk.read(job_id)
        assert (job.status, job.pause_requested) == (becomes, False), (asked, ending)


def test_attempts_in_a_row_that_come_to_nothing_end_the_job_after_longer_and_longer_pauses(desk: Desk) -> None:
    job_id = desk.create(max_attempts=4)
    waits = []
    for attempt in (1, 2, 3, 4):
        assert desk.claim() is not None
        desk.fail(job_id, attempt)
        job = desk.read(job_id)
        if job.status == "queued":
            waits.append((job.not_before - desk.clock()).total_seconds() if job.not_before else 0)
            if job.not_before:
                assert desk.claim() is None
                assert "after a pause" in (jobs.as_shape(job).waiting_reason or "")
                desk.clock.advance(waits[-1])
    assert waits == [0, 10, 20]
    assert (job.status, job.error_code, job.failures) == ("failed", "hung", 4)
    assert "4 attempts in a row" in (job.error_message or "")
    assert [change.message for change in desk.statuses(job_id)][4] == "hung: it hung (try 3 of 4 in 10 s)"


def test_a_saved_checkpoint_is_progress(desk: Desk) -> None:
    job_id = desk.create(max_attempts=2)
    for attempt in range(1, 6):
        desk.claim()
        desk.append(job_id, attempt, checkpoint(attempt))
        desk.fail(job_id, attempt)
    assert desk.read(job_id).status == "queued"


def test_only_running_time_counts_towards_the_limit(desk: Desk) -> None:
    job_id = desk.create(max_hours=1)
    desk.claim()
    desk.clock.advance(600)
    desk.finish(job_id, 1, status="paused")
    desk.clock.advance(86_400)
    desk.ask("resume", job_id)
    again = desk.claim()
    assert again is not None
    assert again.seconds_left == 3000


def test_unknown_jobs(desk: Desk) -> None:
    with pytest.raises(NotFound):
        desk.read("job_none")
    with pytest.raises(NotFound):
        desk.finish("job_none", 1)


def test_pages_go_from_new_to_old(desk: Desk) -> None:
    ids = sorted((desk.create() for _ in range(5)), reverse=True)
    desk.claim()
    with desk.sessions.begin() as session:
        first, more = jobs.list_page(session, status=None, limit=3, after=None)
        rest, no_more = jobs.list_page(session, status=None, limit=3, after=first[-1].id)
        assert ([job.id for job in [*first, *rest]], more, no_more) == (ids, True, False)
        queued, _ = jobs.list_page(session, status="queued", limit=10, after=None)
        assert [job.id for job in queued] == ids[:-1]  # the oldest was claimed
        assert jobs.count_by_status(session) == {"queued": 4, "running": 1}


def test_jobs_are_found_by_part_of_a_name_or_id(desk: Desk) -> None:
    summer, winter, odd = desk.create(name="Summer school"), desk.create(name="winter"), desk.create(name="50%_off")

    def found(q: str) -> set[str]:
        with desk.sessions.begin() as session:
            return {job.id for job in jobs.list_page(session, status=None, q=q, limit=10, after=None)[0]}

    assert found("SUMMER") == {summer}
    assert found(winter[-12:]) == {winter}
    assert found("%_") == {odd}
    assert found("er") >= {summer, winter}


def test_an_idempotency_key_makes_one_job(desk: Desk) -> None:
    job_id = desk.create(idempotency_key="k")
    assert desk.create(idempotency_key="k") == job_id
    assert desk.create(idempotency_key="other") != job_id
    with pytest.raises(Conflict):
        desk.create(name="b", idempotency_key="k")
    assert desk.status_names(job_id) == ["queued"]


def test_simultaneous_requests_with_one_key_make_one_job(desk: Desk) -> None:
    made = at_once(lambda: desk.create(idempotency_key="k"), 6)
    assert len(set(made)) == 1


def test_claiming_reads_an_index(tmp_path: Path) -> None:
    """The worker's question must not slow down with the number of finished jobs. SQLite only: PostgreSQL's planner
    rightly scans a table this small."""
    url = f"sqlite:///{tmp_path / 'plan.db'}"
    upgrade(url)
    query = (
        "SELECT id FROM jobs WHERE status = 'queued' AND (not_before IS NULL OR not_before <= '2026-01-01') "
        "AND (memory_bytes IS NULL OR memory_bytes <= 9) ORDER BY priority DESC, id LIMIT 1"
    )
    with make_engine(url).begin() as connection:
        plan = connection.execute(text(f"EXPLAIN QUERY PLAN {query}")).all()
    assert [row.detail for row in plan] == ["SEARCH jobs USING INDEX ix_jobs_claim (status=?)"]
