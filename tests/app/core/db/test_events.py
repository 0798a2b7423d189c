"""Numbers without holes, the fence, and what steps measured."""

from __future__ import annotations

import math

import pytest
from sqlalchemy.orm import Session, sessionmaker

from app.core.db import curves, events, job_sweeps, jobs
from app.core.errors import AttemptLost
from app.core.events import Evaluated, StepDone, Warned, parse_event
from tests.app.conftest import Clock, at_once, make_config

Sessions = sessionmaker[Session]


@pytest.fixture
def job_id(sessions: Sessions, clock: Clock) -> str:
    """A running job in its first attempt."""
    with sessions.begin() as session:
        job = jobs.create(session, name="a", config=make_config(), priority=0, now=clock())
        jobs.claim_next(session, worker="w", now=clock())
        return job.id


def step(number: int, **metrics: float) -> StepDone:
    return StepDone(step=number, max_steps=9, source="fresh", tokens=5, tokens_per_s=1.0, eta_s=0.0, metrics=metrics)


def test_events_come_back_as_they_went_in(sessions: Sessions, clock: Clock, job_id: str) -> None:
    told = [step(1, a=0.5), Warned(code="c", message="überraschend"), Evaluated(step=1, metrics={"eval/kl_ts": 2.0})]
    with sessions.begin() as session:
        events.append(session, job_id=job_id, attempt=1, events=told, now=clock())
    with sessions.begin() as session:
        rows, has_more = events.page(session, job_id=job_id, after=2, limit=10)
        assert [row.seq for row in rows] == [3, 4, 5]
        assert [parse_event(row.payload) for row in rows] == told
        assert not has_more
        assert events.as_shape(rows[0]).created_at == clock()
        assert jobs.get(session, job_id).step == 1


def test_nul_in_what_a_model_said_is_replaced(sessions: Sessions, clock: Clock, job_id: str) -> None:
    """PostgreSQL refuses it; a job must not fail because its student sampled the token."""
    with sessions.begin() as session:
        said = Warned(code="c", message="a\x00\x00b, \\u0000, \\\x00")
        events.append(session, job_id=job_id, attempt=1, events=[said], now=clock())
    with sessions.begin() as session:
        (row,) = events.page(session, job_id=job_id, after=2, limit=10)[0]
        assert row.payload["message"] == "a\ufffd\ufffdb, \\u0000, \\\ufffd"


def test_pages_follow_the_cursor(sessions: Sessions, clock: Clock, job_id: str) -> None:
    with sessions.begin() as session:
        events.append(session, job_id=job_id, attempt=1, events=[step(i) for i in range(1, 6)], now=clock())
        rows, has_more = events.page(session, job_id=job_id, after=1, limit=3)
        assert ([row.seq for row in rows], has_more) == ([2, 3, 4], True)
        rows, has_more = events.page(session, job_id=job_id, after=4, limit=3)
        assert ([row.seq for row in rows], has_more) == ([5, 6, 7], False)


def test_simultaneous_writers_leave_no_hole(sessions: Sessions, clock: Clock, job_id: str) -> None:
    def write() -> None:
        for i in range(10):
            with sessions.begin() as session:
                events.append(session, job_id=job_id, attempt=1, events=[step(i + 1), step(i + 2)], now=clock())

    at_once(write, 4)
    with sessions.begin() as session:
        rows, _ = events.page(session, job_id=job_id, after=0, limit=1000)
        assert [row.seq for row in rows] == list(range(1, 83))


def test_only_the_running_attempt_may_write(sessions: Sessions, clock: Clock, job_id: str) -> None:
    with pytest.raises(AttemptLost), sessions.begin() as session:
        events.append(session, job_id=job_id, attempt=2, events=[step(1)], now=clock())
    with sessions.begin() as session:
        jobs.finish(session, job_id=job_id, attempt=1, status="succeeded", now=clock())
    with pytest.raises(AttemptLost), sessions.begin() as session:
        events.append(session, job_id=job_id, attempt=1, events=[step(1, a=1.0)], now=clock())
    with sessions.begin() as session:
        rows, _ = events.page(session, job_id=job_id, after=0, limit=10)
        assert [row.payload["kind"] for row in rows] == ["status"] * 3
        assert curves.read(session, job_id=job_id, names=None, max_points=10) == []


def test_what_is_stored_already_is_left_out(sessions: Sessions, clock: Clock, job_id: str) -> None:
    """Whoever was cut off while it committed tells the same events again, and maybe more."""
    with sessions.begin() as session:
        after = jobs.get(session, job_id).last_seq
    told = [step(1, a=1.0), Evaluated(step=1, metrics={}), step(2, a=2.0)]
    for count in (2, 2, 3, 3):
        with sessions.begin() as session:
            events.append(session, job_id=job_id, attempt=1, events=told[:count], now=clock(), after=after)
    with sessions.begin() as session:
        rows, _ = events.page(session, job_id=job_id, after=after, limit=10)
        assert [(row.seq, row.payload["kind"]) for row in rows] == [
            (after + 1, "step"),
            (after + 2, "evaluated"),
            (after + 3, "step"),
        ]
        job = jobs.get(session, job_id)
        assert (job.training_events, job.step, job.tokens) == (3, 2, told[0].tokens + told[2].tokens)
        events.append(session, job_id=job_id, attempt=1, events=[step(3)], now=clock(), after=after + 3)
        assert jobs.get(session, job_id).step == 3


def test_writing_counts_as_a_heartbeat(sessions: Sessions, clock: Clock, job_id: str) -> None:
    with sessions.begin() as session:
        events.append(session, job_id=job_id, attempt=1, events=[step(1)], now=clock.advance(50))
        assert job_sweeps.requeue_stale(session, now=clock.advance(50), lease_s=60) == []


def test_curves_by_name_and_a_step_measured_twice(sessions: Sessions, clock: Clock, job_id: str) -> None:
    told = [step(1, a=1.0, b=math.nan), step(2, a=2.0, b=math.inf), Evaluated(step=2, metrics={"e": 1.0})]
    for batch in (told, [Evaluated(step=2, metrics={"e": 3.0})]):
        with sessions.begin() as session:
            events.append(session, job_id=job_id, attempt=1, events=batch, now=clock())
    with sessions.begin() as session:
        found = {curve.name: curve.points for curve in curves.read(session, job_id=job_id, names=None, max_points=9)}
        assert found == {"a": [(1, 1.0), (2, 2.0)], "e": [(2, 3.0)]}  # what is not finite is no point
        only = curves.read(session, job_id=job_id, names=["e", "unknown"], max_points=9)
        assert [curve.name for curve in only] == ["e"]
