"""Every transition of a job, its event, its fence, and what happens when many processes claim at once."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from app.core.db import curves, events, jobs
from app.core.db.migrate import upgrade
from app.core.db.session import make_engine
from app.core.db.tables import Job
from app.core.errors import AttemptLost, Conflict, NotFound
from app.core.events import StepDone
from tests.app.conftest import Clock, at_once, make_config

Sessions = sessionmaker[Session]


def create(sessions: Sessions, clock: Clock, *, name: str = "a", priority: int = 0, **extra: Any) -> str:
    with sessions.begin() as session:
        return jobs.create(
            session, name=name, config=make_config(), priority=priority, now=clock.advance(0.01), **extra
        ).id


def claim(sessions: Sessions, clock: Clock, worker: str = "w") -> jobs.Claim | None:
    with sessions.begin() as session:
        return jobs.claim_next(session, worker=worker, now=clock())


def finish(sessions: Sessions, clock: Clock, job_id: str, attempt: int, **outcome: Any) -> None:
    with sessions.begin() as session:
        jobs.finish(session, job_id=job_id, attempt=attempt, now=clock(), **{"status": "succeeded", **outcome})


def read(sessions: Sessions, job_id: str) -> Job:
    with sessions.begin() as session:
        return jobs.get(session, job_id)


def statuses(sessions: Sessions, job_id: str) -> list[tuple[int, str]]:
    with sessions.begin() as session:
        rows, _ = events.page(session, job_id=job_id, after=0, limit=100)
        return [(row.seq, row.payload["status"]) for row in rows if row.payload["kind"] == "status"]


def test_a_job_runs_once_and_says_so(sessions: Sessions, clock: Clock) -> None:
    job_id = create(sessions, clock)
    claimed = claim(sessions, clock)
    assert claimed is not None
    assert (claimed.job_id, claimed.attempt, claimed.config) == (job_id, 1, make_config().model_dump(mode="json"))
    assert claim(sessions, clock) is None
    finish(sessions, clock, job_id, 1)
    assert statuses(sessions, job_id) == [(1, "queued"), (2, "running"), (3, "succeeded")]
    job = read(sessions, job_id)
    assert (job.status, job.worker, job.max_steps) == ("succeeded", "w", 1000)
    assert job.finished_at == clock()
    assert job.finished_at.tzinfo is UTC


def test_priority_goes_before_age(sessions: Sessions, clock: Clock) -> None:
    old, urgent, new, least = (create(sessions, clock, priority=priority) for priority in (0, 5, 0, -1))
    # Identifiers made within one millisecond sort at random, so age decides between `old` and `new` only as ids do.
    first, second = sorted([old, new])
    order = [claimed.job_id for _ in range(4) if (claimed := claim(sessions, clock))]
    assert order == [urgent, first, second, least]


def test_many_claimers_never_get_the_same_job(sessions: Sessions, clock: Clock) -> None:
    wanted = {create(sessions, clock) for _ in range(24)}

    def claim_all() -> list[str]:
        mine = []
        while (claimed := claim(sessions, clock)) is not None:
            mine.append(claimed.job_id)
        return mine

    claimed = [job_id for mine in at_once(claim_all, 8) for job_id in mine]
    assert len(claimed) == 24
    assert set(claimed) == wanted


def test_failure_is_kept_with_its_reason(sessions: Sessions, clock: Clock) -> None:
    job_id = create(sessions, clock)
    claim(sessions, clock)
    finish(sessions, clock, job_id, 1, status="failed", code="out_of_memory", message="lower batch_size")
    shape = jobs.as_shape(read(sessions, job_id))
    assert shape.error is not None
    assert (shape.status, shape.error.code, shape.error.message) == ("failed", "out_of_memory", "lower batch_size")


def test_a_replaced_worker_cannot_write(sessions: Sessions, clock: Clock) -> None:
    job_id = create(sessions, clock)
    claim(sessions, clock, "dead?")
    with sessions.begin() as session:
        assert jobs.requeue_stale(session, now=clock.advance(61), lease_s=60) == [job_id]
    for attempt in (1, 2):  # 1 was taken away, 2 is not claimed yet
        with pytest.raises(AttemptLost), sessions.begin() as session:
            jobs.heartbeat(session, job_id=job_id, attempt=attempt, now=clock())
        with pytest.raises(AttemptLost):
            finish(sessions, clock, job_id, attempt)
    again = claim(sessions, clock, "alive")
    assert again is not None
    assert again.attempt == 2
    with pytest.raises(AttemptLost):
        finish(sessions, clock, job_id, 1)
    finish(sessions, clock, job_id, 2)
    names = [status for _, status in statuses(sessions, job_id)]
    assert names == ["queued", "running", "queued", "running", "succeeded"]


def test_a_heartbeat_keeps_the_lease(sessions: Sessions, clock: Clock) -> None:
    job_id = create(sessions, clock)
    claim(sessions, clock)
    with sessions.begin() as session:
        assert jobs.heartbeat(session, job_id=job_id, attempt=1, now=clock.advance(50)) is False
    with sessions.begin() as session:
        assert jobs.requeue_stale(session, now=clock.advance(50), lease_s=60) == []
    assert read(sessions, job_id).status == "running"


def test_the_third_lost_worker_is_the_last(sessions: Sessions, clock: Clock) -> None:
    job_id = create(sessions, clock)
    for _ in range(3):
        assert claim(sessions, clock) is not None
        with sessions.begin() as session:
            jobs.requeue_stale(session, now=clock.advance(61), lease_s=60, max_attempts=3)
    job = read(sessions, job_id)
    assert (job.status, job.error_code, job.attempt) == ("failed", "worker_lost", 3)
    assert claim(sessions, clock) is None


def test_a_new_attempt_starts_its_curves_anew(sessions: Sessions, clock: Clock) -> None:
    job_id = create(sessions, clock)
    for attempt, last_step in ((1, 3), (2, 1)):
        claim(sessions, clock)
        steps = [step_done(step, loss=float(attempt)) for step in range(1, last_step + 1)]
        with sessions.begin() as session:
            events.append(session, job_id=job_id, attempt=attempt, events=steps, now=clock())
        with sessions.begin() as session:
            curve = curves.read(session, job_id=job_id, names=None, max_points=100)[0]
            jobs.requeue_stale(session, now=clock.advance(61), lease_s=60)
    assert curve.points == [(1, 2.0)]
    assert read(sessions, job_id).step == 1


def test_a_queued_job_is_cancelled_at_once(sessions: Sessions, clock: Clock) -> None:
    job_id = create(sessions, clock)
    with sessions.begin() as session:
        job = jobs.request_cancel(session, job_id=job_id, now=clock())
        assert (job.status, job.finished_at) == ("cancelled", clock())
    assert claim(sessions, clock) is None
    with pytest.raises(Conflict, match="cancelled"), sessions.begin() as session:
        jobs.request_cancel(session, job_id=job_id, now=clock())


def test_a_running_job_is_asked_to_stop(sessions: Sessions, clock: Clock) -> None:
    job_id = create(sessions, clock)
    claim(sessions, clock)
    with sessions.begin() as session:
        job = jobs.request_cancel(session, job_id=job_id, now=clock())
        assert (job.status, job.cancel_requested) == ("running", True)
    with sessions.begin() as session:
        assert jobs.heartbeat(session, job_id=job_id, attempt=1, now=clock()) is True
        jobs.finish(session, job_id=job_id, attempt=1, status="cancelled", now=clock())
    assert read(sessions, job_id).status == "cancelled"


def test_a_job_that_should_stop_is_not_queued_again(sessions: Sessions, clock: Clock) -> None:
    job_id = create(sessions, clock)
    claim(sessions, clock)
    with sessions.begin() as session:
        jobs.request_cancel(session, job_id=job_id, now=clock())
        assert jobs.requeue_stale(session, now=clock.advance(61), lease_s=60) == []
    assert read(sessions, job_id).status == "cancelled"


def test_unknown_jobs(sessions: Sessions, clock: Clock) -> None:
    for call in (
        lambda session: jobs.get(session, "job_none"),
        lambda session: jobs.request_cancel(session, job_id="job_none", now=clock()),
    ):
        with pytest.raises(NotFound), sessions.begin() as session:
            call(session)


def test_pages_go_from_new_to_old(sessions: Sessions, clock: Clock) -> None:
    ids = sorted((create(sessions, clock) for _ in range(5)), reverse=True)
    claim(sessions, clock)
    with sessions.begin() as session:
        first, more = jobs.list_page(session, status=None, limit=3, after=None)
        rest, no_more = jobs.list_page(session, status=None, limit=3, after=first[-1].id)
        assert ([job.id for job in [*first, *rest]], more, no_more) == (ids, True, False)
        queued, _ = jobs.list_page(session, status="queued", limit=10, after=None)
        assert [job.id for job in queued] == ids[:-1]  # the oldest was claimed
        assert jobs.count_by_status(session) == {"queued": 4, "running": 1}


def test_an_idempotency_key_makes_one_job(sessions: Sessions, clock: Clock) -> None:
    job_id = create(sessions, clock, idempotency_key="k")
    assert create(sessions, clock, idempotency_key="k") == job_id
    assert create(sessions, clock, idempotency_key="other") != job_id
    with pytest.raises(Conflict):
        create(sessions, clock, name="b", idempotency_key="k")
    assert [status for _, status in statuses(sessions, job_id)] == ["queued"]


def test_simultaneous_requests_with_one_key_make_one_job(sessions: Sessions, clock: Clock) -> None:
    made = at_once(lambda: create(sessions, clock, idempotency_key="k"), 6)
    assert len(set(made)) == 1


def test_waiting_jobs_are_announced_again_ever_more_rarely(sessions: Sessions, clock: Clock) -> None:
    job_id = create(sessions, clock)
    queued_at, announced = clock(), []
    while len(announced) < 7:
        clock.advance(1)
        with sessions.begin() as session:
            if jobs.unannounced(session, now=clock(), older_than_s=10) == [job_id]:
                jobs.mark_announced(session, job_id=job_id, now=clock())
                announced.append((clock() - queued_at).total_seconds())
    assert announced == [10, 20, 40, 80, 160, 320, 620]


def test_running_jobs_are_not_announced(sessions: Sessions, clock: Clock) -> None:
    create(sessions, clock)
    claim(sessions, clock)
    with sessions.begin() as session:
        assert jobs.unannounced(session, now=clock.advance(1000), older_than_s=10) == []


def test_claiming_reads_an_index(tmp_path: Path) -> None:
    """The worker's question must not slow down with the number of finished jobs. SQLite only: PostgreSQL's planner
    rightly scans a table this small."""
    url = f"sqlite:///{tmp_path / 'plan.db'}"
    upgrade(url)
    query = "SELECT id FROM jobs WHERE status = 'queued' ORDER BY priority DESC, id LIMIT 1"
    with make_engine(url).begin() as connection:
        plan = connection.execute(text(f"EXPLAIN QUERY PLAN {query}")).all()
    assert [row.detail for row in plan] == ["SEARCH jobs USING COVERING INDEX ix_jobs_claim (status=?)"]


def step_done(step: int, **metrics: float) -> StepDone:
    named = {f"loss/{name}": value for name, value in metrics.items()}
    return StepDone(step=step, max_steps=10, source="fresh", tokens=5, tokens_per_s=1.0, eta_s=0.0, metrics=named)
