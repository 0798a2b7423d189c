"""Jobs handled one transaction at a time, as routes, workers and the sweeper do, on a clock of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy.orm import Session, sessionmaker

from app.core.db import events, job_requests, job_sweeps, jobs
from app.core.db.tables import Job
from app.core.events import CheckpointSaved, Event, StatusChanged, StepDone, parse_event
from tests.app.conftest import Clock, make_config

T = TypeVar("T")


@dataclass(frozen=True)
class Desk:
    sessions: sessionmaker[Session]
    clock: Clock

    def do(self, act: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """`act(session, ..., now=the clock's time)` in a transaction of its own."""
        with self.sessions.begin() as session:
            return act(session, *arguments, now=self.clock(), **named)

    def create(self, *, name: str = "a", priority: int = 0, **extra: Any) -> str:
        self.clock.advance(0.01)
        return self.do(jobs.create, name=name, config=make_config(), priority=priority, **extra).id

    def claim(self, worker: str = "w", **has: Any) -> jobs.Claim | None:
        return self.do(jobs.claim_next, worker=worker, **has)

    def append(self, job_id: str, attempt: int, *told: Event) -> None:
        self.do(events.append, job_id=job_id, attempt=attempt, events=told)

    def heartbeat(self, job_id: str, attempt: int) -> jobs.Stop | None:
        return self.do(jobs.heartbeat, job_id=job_id, attempt=attempt)

    def finish(self, job_id: str, attempt: int, **outcome: Any) -> None:
        self.do(jobs.finish, job_id=job_id, attempt=attempt, **{"status": "succeeded", **outcome})

    def fail(self, job_id: str, attempt: int, *, code: str = "hung") -> None:
        self.do(jobs.give_up_attempt, job_id=job_id, attempt=attempt, code=code, message="it hung")

    def sweep(self, *, lease_s: float = 60) -> list[str]:
        return self.do(job_sweeps.requeue_stale, lease_s=lease_s)

    def ask(self, what: str, job_id: str, **how: Any) -> Job:
        """`what`: cancel, pause, resume or retry."""
        acts = {
            "cancel": job_requests.request_cancel,
            "pause": job_requests.request_pause,
            "resume": job_requests.resume,
            "retry": job_requests.retry,
        }
        return self.do(acts[what], job_id=job_id, **how)

    def read(self, job_id: str) -> Job:
        with self.sessions.begin() as session:
            return jobs.get(session, job_id)

    def statuses(self, job_id: str) -> list[StatusChanged]:
        """Every change of the job's status; its events have no hole."""
        with self.sessions.begin() as session:
            rows, _ = events.page(session, job_id=job_id, after=0, limit=1000)
        assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
        return [told for row in rows if isinstance(told := parse_event(row.payload), StatusChanged)]

    def status_names(self, job_id: str) -> list[str]:
        return [change.status for change in self.statuses(job_id)]


def step_done(step: int, *, eta_s: float = 0.0, **metrics: float) -> StepDone:
    named = {f"loss/{name}": value for name, value in metrics.items()}
    return StepDone(step=step, max_steps=10, source="fresh", tokens=5, tokens_per_s=1.0, eta_s=eta_s, metrics=named)


def checkpoint(step: int) -> CheckpointSaved:
    return CheckpointSaved(step=step, bytes=10, best=False)
