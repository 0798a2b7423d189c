"""What people do to jobs: every action in every status, and what it leaves."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import func, select

from app.core.compare_schemas import ChatMessage, ComparisonIn
from app.core.db import comparisons, curves, job_requests, jobs, models
from app.core.db.tables import EventRow, Job, Metric, Model
from app.core.errors import Conflict, NotFound
from tests.app.core.db.desk import Desk, checkpoint, step_done

STATUSES = ("queued", "running", "paused", "succeeded", "failed", "cancelled")
# What becomes of a job in each status; an action that is not listed is a conflict.
ALLOWED = {
    "cancel": {"queued": "cancelled", "running": "running", "paused": "cancelled"},
    "pause": {"queued": "paused", "running": "running"},
    "resume": {"paused": "queued"},
    "retry": {"failed": "queued", "cancelled": "queued"},
}


def job_in(desk: Desk, status: str, *, priority: int = 0) -> str:
    """A new job, brought into that status; `priority` lets it be claimed before others that wait."""
    job_id = desk.create(priority=priority)
    if status != "queued":
        desk.claim()
        if status != "running":
            desk.finish(job_id, 1, status=status, code="hung" if status == "failed" else None)
    return job_id


@pytest.mark.parametrize("what", list(ALLOWED))
def test_every_action_in_every_status(desk: Desk, what: str) -> None:
    how: dict[str, Any] = {"from_checkpoint": True} if what == "retry" else {}
    for i, status in enumerate(STATUSES):
        job_id = job_in(desk, status, priority=i)
        if (becomes := ALLOWED[what].get(status)) is None:
            with pytest.raises(Conflict, match=f"{job_id} is {status}; "):
                desk.ask(what, job_id, **how)
            continue
        before = desk.status_names(job_id)
        assert desk.ask(what, job_id, **how).status == becomes
        assert desk.status_names(job_id) == before + [becomes] * (becomes != status)


def test_a_running_job_is_asked_to_stop_and_cancel_wins(desk: Desk) -> None:
    job_id = job_in(desk, "running")
    assert desk.ask("pause", job_id).pause_requested
    assert desk.heartbeat(job_id, 1) == "pause"
    assert desk.ask("cancel", job_id).cancel_requested
    assert desk.heartbeat(job_id, 1) == "cancel"
    with pytest.raises(Conflict, match="about to be cancelled"):
        desk.ask("pause", job_id)


def test_a_pause_that_has_not_happened_can_be_taken_back(desk: Desk) -> None:
    job_id = job_in(desk, "running")
    desk.ask("pause", job_id)
    assert not desk.ask("resume", job_id).pause_requested
    assert desk.heartbeat(job_id, 1) is None


def test_a_queued_job_that_is_paused_is_not_claimed(desk: Desk) -> None:
    job_id = desk.create()
    desk.ask("pause", job_id)
    assert desk.claim() is None
    desk.ask("resume", job_id)
    claimed = desk.claim()
    assert claimed is not None
    assert claimed.job_id == job_id


def measured(desk: Desk) -> str:
    """A job that failed at step 2, with a checkpoint."""
    job_id = job_in(desk, "running")
    desk.append(job_id, 1, step_done(1, loss=2.0), step_done(2, loss=1.0), checkpoint(2))
    desk.finish(job_id, 1, status="failed", code="hung", message="m")
    return job_id


def points(desk: Desk, job_id: str) -> int:
    with desk.sessions.begin() as session:
        return sum(len(curve.points) for curve in curves.read(session, job_id=job_id, names=None, max_points=100))


def test_a_retry_from_its_checkpoint_keeps_what_was_measured(desk: Desk) -> None:
    job_id = measured(desk)
    job = desk.ask("retry", job_id, from_checkpoint=True)
    assert (job.training_events, job.step, job.tokens, job.error_code, job.finished_at) == (2, 2, 10, None, None)
    assert points(desk, job_id) == 2


def test_a_clean_retry_starts_from_nothing_and_keeps_the_events(desk: Desk) -> None:
    job_id = measured(desk)
    job = desk.ask("retry", job_id, from_checkpoint=False)
    assert (job.training_events, job.step, job.tokens, job.started_at, job.used_s) == (0, 0, 0, None, 0)
    assert points(desk, job_id) == 0
    assert desk.statuses(job_id)[-1].message == "retried from nothing"


def test_a_cancelled_job_can_be_retried_and_is_not_cancelled_again(desk: Desk) -> None:
    job_id = job_in(desk, "running")
    desk.ask("cancel", job_id)
    desk.finish(job_id, 1, status="cancelled")
    desk.ask("retry", job_id, from_checkpoint=True)
    again = desk.claim()
    assert again is not None
    assert desk.heartbeat(job_id, again.attempt) is None


def with_models(desk: Desk) -> str:
    """A job that succeeded, with its untrained and its distilled student."""
    job_id = job_in(desk, "running")
    desk.append(job_id, 1, step_done(1, loss=2.0))
    with desk.sessions.begin() as session:
        models.ensure_teacher(session, source="teacher", parameters=1, now=desk.clock())
        untrained = models.create_untrained(
            session, job_id=job_id, name="u", source="teacher", parameters=1, now=desk.clock()
        )
        jobs.get(session, job_id).untrained_id = untrained.id
        models.create_student(
            session,
            model_id=f"mdl_of_{job_id}",
            job_id=job_id,
            name="s",
            parameters=1,
            weights_sha256="ab",
            card={},
            now=desk.clock(),
        )
    desk.finish(job_id, 1, student_id=f"mdl_of_{job_id}")
    return job_id


def remove(desk: Desk, job_id: str) -> list[str]:
    with desk.sessions.begin() as session:
        return list(job_requests.remove(session, job_id=job_id))


def test_deleting_removes_the_job_its_events_curves_and_students(desk: Desk) -> None:
    job_id, other = with_models(desk), with_models(desk)
    assert remove(desk, job_id) == [f"students/mdl_of_{job_id}"]
    with pytest.raises(NotFound):
        remove(desk, job_id)
    with desk.sessions.begin() as session:
        for table in (EventRow, Metric):
            assert set(session.scalars(select(table.job_id))) == {other}
        assert list(session.scalars(select(Job.id))) == [other]
        assert session.scalar(select(func.count()).select_from(Model)) == 3  # the other's two, and the teacher


def test_what_runs_or_will_run_is_not_deleted(desk: Desk) -> None:
    for status in ("running", "queued"):
        job_id = job_in(desk, status)
        with pytest.raises(Conflict, match=f"is {status}; cancel it first"):
            remove(desk, job_id)
        desk.ask("cancel", job_id)
    for status in ("paused", "succeeded", "failed", "cancelled"):
        assert remove(desk, job_in(desk, status)) == []


def test_a_student_that_somebody_is_asking_is_not_deleted(desk: Desk) -> None:
    job_id = with_models(desk)
    request = ComparisonIn(model_ids=[f"mdl_of_{job_id}"], messages=[ChatMessage(role="user", content="hi")])
    comparison = desk.do(comparisons.create, request=request)
    with pytest.raises(Conflict, match=comparison.id):
        remove(desk, job_id)
    claim = desk.do(comparisons.claim_next, worker="w")
    assert claim is not None
    desk.do(comparisons.finish, comparison_id=comparison.id, attempt=1, code="out_of_memory", message="m")
    assert remove(desk, job_id) == [f"students/mdl_of_{job_id}"]
