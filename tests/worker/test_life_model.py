"""Jobs, workers, a broker and people as a state machine: whatever happens in whatever order, the promises hold.

The database, the sweeper, the doorbell, the replay rule and the broker's twin are the real ones; workers are what a
test can stop, kill and wake up at any point between two transactions, and time is the test's own.
"""

from __future__ import annotations

import shutil
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import select

from app.core.db import events, job_requests, jobs
from app.core.db.migrate import upgrade
from app.core.db.session import make_engine, make_sessions
from app.core.db.tables import EventRow, Job
from app.core.errors import AttemptLost, Conflict
from app.core.events import CheckpointSaved, Evaluated
from app.core.queue import RecordingQueue
from app.doorbell import Doorbell
from app.sweeper import Sweeper
from tests.app.conftest import Clock, make_config
from tests.worker.life import Attempt, check_story

LEASE_S, SWEEP_S = 60.0, 5.0
WORKERS = ("a", "b", "c")
ENDINGS = ("succeeded", "failed", "cancelled", "paused", "queued")


BUSY = st.integers(0, len(WORKERS) - 1)  # one of those that work


class JobLife(RuleBasedStateMachine):
    template: Path  # a migrated, empty database

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        shutil.copy(self.template, self.folder / "jobs.db")
        self.engine = make_engine(f"sqlite:///{self.folder / 'jobs.db'}")
        self.sessions = make_sessions(self.engine)
        self.clock = Clock()
        self.queue = RecordingQueue()
        self.doorbell = Doorbell(queue=self.queue, sessions=self.sessions, clock=self.clock)
        self.sweeper = Sweeper(
            sessions=self.sessions, doorbell=self.doorbell, lease_s=LEASE_S, sweep_s=SWEEP_S, clock=self.clock
        )
        self.accepted: list[str] = []
        self.working: dict[str, Attempt] = {}  # what each worker believes
        self.kept: dict[str, list[int]] = {}  # checkpoints of a job: training events told by then
        self.clean_since: dict[str, int] = {}  # seq of the job's last start from nothing

    def teardown(self) -> None:
        try:
            if self.accepted:
                self.everything_ends()
        finally:
            self.engine.dispose()
            shutil.rmtree(self.folder)

    def do(self, act: Any, **named: Any) -> Any:
        with self.sessions.begin() as session:
            return act(session, now=self.clock(), **named)

    def job(self, job_id: str) -> Job:
        with self.sessions.begin() as session:
            return jobs.get(session, job_id)

    # --- people ---------------------------------------------------------------------------------------------

    @initialize(priority=st.integers(-1, 1))
    def first(self, priority: int) -> None:
        """Two jobs, and somebody is at work: most of what can go wrong needs that, and chance alone is slow to it."""
        self.submit(priority, 2, announced=True)
        self.submit(priority, 2, announced=True)
        self.message_arrives("a")

    @precondition(lambda self: len(self.accepted) < 3)
    @rule(priority=st.integers(-1, 1), max_attempts=st.integers(1, 3), announced=st.booleans())
    def submit(self, priority: int, max_attempts: int, announced: bool) -> None:
        """Not announced: the API was killed between commit and announcement."""
        config = make_config()
        job_id = self.do(jobs.create, name="j", config=config, priority=priority, max_attempts=max_attempts).id
        self.accepted.append(job_id)
        self.kept[job_id], self.clean_since[job_id] = [], 0
        if announced:
            self.doorbell.ring_training(job_id)

    @rule(which=st.integers(0, 2), what=st.sampled_from(["cancel", "pause", "resume", "retry", "start anew"]))
    def ask(self, which: int, what: str) -> None:
        job_id = self.accepted[which % len(self.accepted)]
        acts: dict[str, Any] = {
            "cancel": (job_requests.request_cancel, {}),
            "pause": (job_requests.request_pause, {}),
            "resume": (job_requests.resume, {}),
            "retry": (job_requests.retry, {"from_checkpoint": True}),
            "start anew": (job_requests.retry, {"from_checkpoint": False}),
        }
        act, how = acts[what]
        try:
            after = self.do(act, job_id=job_id, **how)
        except Conflict:  # which status allows what: test_job_requests.py
            return
        if what == "start anew":
            self.kept[job_id], self.clean_since[job_id] = [], after.last_seq

    # --- the broker -----------------------------------------------------------------------------------------

    @rule()
    def messages_are_doubled(self) -> None:
        self.queue.announced *= 2
        del self.queue.announced[20:]

    @rule()
    def broker_is_wiped(self) -> None:
        self.queue.announced.clear()

    @rule()
    def broker_goes_away_or_comes_back(self) -> None:
        self.queue.fail = not self.queue.fail

    # --- time and the sweeper -------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1.0, 20.0, LEASE_S + 1, 700.0, -20.0]))
    def time_passes(self, seconds: float) -> None:
        """A clock may also be set back."""
        self.clock.now += timedelta(seconds=seconds)

    @rule()
    def sweep(self) -> None:
        """Who was heard of within the lease keeps its job, and nobody else does."""
        owners = [attempt for attempt in self.working.values() if self.owns(attempt)]
        before = [self.job(attempt.job_id) for attempt in owners]
        self.sweeper.sweep()
        oldest = self.clock() - timedelta(seconds=LEASE_S)
        for attempt, job in zip(owners, before, strict=True):
            assert job.heartbeat_at is not None
            assert self.owns(attempt) == (job.heartbeat_at >= oldest)

    # --- workers --------------------------------------------------------------------------------------------

    @precondition(lambda self: self.queue.announced)
    @rule(worker=st.sampled_from(WORKERS))
    def message_arrives(self, worker: str) -> None:
        """A worker that works already takes the message after its work, so it is lost on it."""
        self.queue.announced.pop(0)
        if worker in self.working:
            return
        claim = self.do(jobs.claim_next, worker=worker)
        if claim is None:
            return
        usable = [told for told in self.kept[claim.job_id] if told <= claim.training_events]
        self.kept[claim.job_id] = usable
        told = max(usable, default=0)
        self.working[worker] = Attempt(claim.job_id, claim.attempt, claim.training_events, told, claim.last_seq)

    @precondition(lambda self: self.working)
    @rule(
        which=BUSY,
        steps=st.integers(1, 3),
        saves=st.booleans(),
        sends=st.booleans(),
        confirmed=st.booleans(),
    )
    def train(self, which: int, steps: int, saves: bool, sends: bool, confirmed: bool = True) -> None:
        """`sends`: what was said reaches the database; else it waits, or is lost with the process. Not `confirmed`:
        it is stored, but the worker does not hear so, and will send it again."""
        worker, attempt = self.busy(which)
        for _ in range(steps):
            attempt.say(Evaluated(step=attempt.told + 1, metrics={}))
        if saves:
            attempt.say(CheckpointSaved(step=attempt.told, bytes=1, best=False))
            if self.owns(attempt):  # one that does not writes into a folder that nobody reads
                self.kept[attempt.job_id].append(attempt.told)
        if sends and attempt.unsent:  # a run that goes on tells again what is stored: nothing is left to send then
            self.send(worker, attempt, confirmed=confirmed)

    def send(self, worker: str, attempt: Attempt, *, confirmed: bool = True) -> bool:
        """Events alone: a worker sends a heartbeat with them, but each of the two is a fence of its own."""

        def write(session: Any, **fence: Any) -> None:
            events.append(session, events=tuple(attempt.unsent), after=attempt.last_seq, **fence)

        if not self.written(worker, attempt, write):
            return False
        if confirmed:
            attempt.confirmed()
        return True

    @precondition(lambda self: self.working)
    @rule(which=BUSY, how=st.sampled_from(ENDINGS))
    def end(self, which: int, how: str) -> None:
        """In a transaction of its own: the job may be somebody else's since the last event was sent."""
        worker, attempt = self.busy(which)
        if attempt.unsent and not self.send(worker, attempt):
            return
        code = {"code": "bad_dataset", "message": "m"} if how == "failed" else {}
        self.written(worker, attempt, jobs.finish, status=how, **code)
        self.working.pop(worker, None)

    @precondition(lambda self: self.working)
    @rule(which=BUSY)
    def fail_for_now(self, which: int) -> None:
        worker, attempt = self.busy(which)
        if attempt.unsent and not self.send(worker, attempt):
            return
        self.written(worker, attempt, jobs.give_up_attempt, code="hung", message="m")
        self.working.pop(worker, None)

    @precondition(lambda self: self.working)
    @rule(which=BUSY)
    def beat(self, which: int) -> None:
        self.written(*self.busy(which), jobs.heartbeat)

    @precondition(lambda self: self.working)
    @rule(which=BUSY)
    def worker_is_killed(self, which: int) -> None:
        self.working.pop(self.busy(which)[0])

    @precondition(lambda self: self.working)
    @rule(which=BUSY, then=st.sampled_from(["train", "beat", "end", "fail"]))
    def worker_is_stopped_past_its_lease(self, which: int, then: str) -> None:
        """Others get its job if there is a broker and an idle one of them; then it wakes up and goes on where it was.
        By single steps alone, chance hardly ever comes here."""
        worker, _ = self.busy(which)
        for pause_s in (LEASE_S + 1, 2 * SWEEP_S + 1):
            self.clock.advance(pause_s)
            self.sweep()
        for other in WORKERS:
            if self.queue.announced and other not in self.working:
                self.message_arrives(other)
        which = sorted(self.working).index(worker)
        if then == "train":
            self.train(which, 1, saves=True, sends=True)
        elif then == "beat":
            self.beat(which)
        elif then == "end":
            self.end(which, "succeeded")
        else:
            self.fail_for_now(which)

    def busy(self, which: int) -> tuple[str, Attempt]:
        worker = sorted(self.working)[which % len(self.working)]
        return worker, self.working[worker]

    def owns(self, attempt: Attempt) -> bool:
        job = self.job(attempt.job_id)
        return (job.status, job.attempt) == ("running", attempt.number)

    def written(self, worker: str, attempt: Attempt, write: Any, **named: Any) -> bool:
        """Late writes are refused, and only those; whoever is refused stops."""
        owns = self.owns(attempt)
        try:
            self.do(write, job_id=attempt.job_id, attempt=attempt.number, **named)
        except AttemptLost:
            assert not owns
            self.working.pop(worker, None)
            return False
        assert owns
        return True

    # --- promises -------------------------------------------------------------------------------------------

    @invariant()
    def no_two_attempts_can_write(self) -> None:
        owners = [attempt.job_id for attempt in self.working.values() if self.owns(attempt)]
        assert len(owners) == len(set(owners))

    @invariant()
    def every_job_tells_its_life_without_a_hole(self) -> None:
        for job_id in self.accepted:
            job = self.job(job_id)
            with self.sessions.begin() as session:
                rows = session.scalars(select(EventRow).where(EventRow.job_id == job_id).order_by(EventRow.seq)).all()
            check_story(job, rows, clean_since=self.clean_since[job_id])

    def everything_ends(self) -> None:
        """However things stand: once the broker is there and one worker lives, every job that nobody paused ends, with
        no other messages than the sweeper's."""
        self.working.clear()
        self.queue.fail = False
        self.queue.announced.clear()
        for _ in range(60):
            if not self.unfinished():
                break
            self.clock.advance(310)
            self.sweep()
            while self.queue.announced:
                self.message_arrives("a")
                if self.working:
                    self.train(0, 1, saves=True, sends=True)
                if self.working:
                    self.end(0, "succeeded")
        assert not self.unfinished()
        self.every_job_tells_its_life_without_a_hole()

    def unfinished(self) -> list[str]:
        return [job_id for job_id in self.accepted if self.job(job_id).status in ("queued", "running")]


@pytest.mark.timeout(600)
def test_a_jobs_life(tmp_path: Path) -> None:
    upgrade(f"sqlite:///{tmp_path / 'template.db'}")
    engine = make_engine(f"sqlite:///{tmp_path / 'template.db'}")
    with engine.connect() as connection:
        connection.exec_driver_sql("SELECT 1")
    engine.dispose()

    class OnThisTemplate(JobLife):
        template = tmp_path / "template.db"

    examples = settings(max_examples=30, stateful_step_count=40, deadline=None, database=None)
    run_state_machine_as_test(OnThisTemplate, settings=settings(examples, suppress_health_check=list(HealthCheck)))
