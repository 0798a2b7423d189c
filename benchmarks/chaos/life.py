"""Ordinary life while things break: jobs are submitted, paused, resumed, cancelled and retried over REST.

Knows what people do and remembers what was accepted. Does not break anything, and does not judge the outcome.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.core.errors import DiskFull
from benchmarks.chaos.house import House, OutOfTime

ENDED = ("succeeded", "failed", "cancelled")
STEPS = 40
IN_FLIGHT = 3
_LOOK_EVERY_S = 0.3
# What somebody does to a job once it is past a random step; most are left alone.
PLANS = ("run", "run", "run", "pause", "cancel", "retry", "retry clean")
# Both have replay, SCRG, DAC-KL and the span loss; the second one tunes its teacher and student before.
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "warmed": {"warmup": {"teacher_sft_steps": 3, "student_sft_steps": 3}},
}


@dataclass(kw_only=True)
class Submitted:
    """A job as its owner sees it. `id` is None until the API has accepted it; `plan` shrinks as it is carried out."""

    key: str
    variant: str
    plan: str
    at_step: int
    id: str | None = None
    row: Mapping[str, Any] = field(default_factory=dict)
    resume_at: float | None = None

    @property
    def has_ended(self) -> bool:
        return self.row.get("status") in ENDED and self.plan not in ("retry", "retry clean")


class Life:
    """`look` is one round of everybody's wishes; `until` goes on with that until something happens."""

    def __init__(self, house: House, *, chance: random.Random, teacher: Path, rows: Path, ends_at: float) -> None:
        self.house = house
        self.jobs: list[Submitted] = []
        self.comparisons: list[str] = []
        self._chance = chance
        self._teacher = teacher
        self._dataset_id = house.service.upload(rows)
        self._ends_at = ends_at
        self._looked_at = 0.0
        self._takes_jobs = False

    @property
    def accepted(self) -> list[str]:
        return [job.id for job in self.jobs if job.id is not None]

    @property
    def is_over(self) -> bool:
        return all(job.has_ended for job in self.jobs)

    def references(self) -> dict[str, str]:
        """One job of each variant, run to its end; to be called before anything breaks. Variant -> job id."""
        references = [self._new(variant, plan="run") for variant in VARIANTS]
        self.until(lambda: all(job.has_ended for job in references), what="the undisturbed jobs end")
        return {job.variant: job.id or "" for job in references}

    def keep_busy(self) -> None:
        """From now on there are always jobs in flight."""
        self._takes_jobs = True

    def compare(self) -> None:
        """Asks the first job's teacher and untrained student something. There is no way to ask twice for the same
        comparison, so one whose answer is lost does not count as accepted."""
        job = self.jobs[0].row
        body = {
            "model_ids": [job["teacher_id"], job["untrained_id"]],
            "messages": [{"role": "user", "content": "the small brown dog"}],
            "max_new_tokens": 8,
        }
        answer = self.house.try_send("POST", "/v1/comparisons", json=body)
        if answer is not None:
            self.comparisons.append(answer.raise_for_status().json()["id"])

    def finish(self) -> None:
        """No new jobs; returns when all have ended, and all comparisons too."""
        self._takes_jobs = False
        self.until(lambda: self.is_over, what="every job ends")
        self.until(lambda: all(map(self._has_answered, self.comparisons)), what="every comparison ends")

    def running(self) -> list[Submitted]:
        """Jobs that have made a step in their current attempt's process, as far as is known."""
        return [job for job in self.jobs if job.row.get("status") == "running" and job.row["step"] > 0]

    def until(self, condition: Callable[[], object], *, what: str, timeout_s: float | None = None) -> bool:
        """Life goes on until the condition holds. Without `timeout_s` it has to: OutOfTime says `what` did not happen.
        With one, False says that it did not within that time."""
        gives_up_at = None if timeout_s is None else time.monotonic() + timeout_s
        while not condition():
            if gives_up_at is not None and time.monotonic() > gives_up_at:
                return False
            if time.monotonic() > self._ends_at:
                raise OutOfTime(f"waited in vain until {what}")
            self.house.tick()
            self.look()
        return True

    def wait(self, seconds: float) -> None:
        self.until(lambda: False, what="a moment has passed", timeout_s=seconds)

    def look(self) -> None:
        if time.monotonic() < self._looked_at + _LOOK_EVERY_S:
            return
        self._looked_at = time.monotonic()
        open_jobs = [job for job in self.jobs if not job.has_ended]
        # Those that failed several times in a row wait for a while; meanwhile there is something else to break.
        ready = [job for job in open_jobs if not job.row.get("not_before")]
        missing = IN_FLIGHT - len(ready) if self._takes_jobs else 0
        open_jobs += [
            self._new(self._chance.choice(list(VARIANTS)), plan=self._chance.choice(PLANS)) for _ in range(missing)
        ]
        for job in open_jobs:
            if job.id is None:
                self._submit(job)
            elif (row := self.house.try_get(f"/v1/jobs/{job.id}")) is not None:
                job.row = row
                self._carry_on(job)

    def _has_answered(self, comparison_id: str) -> bool:
        return self.house.get(f"/v1/comparisons/{comparison_id}")["status"] in ENDED

    def _new(self, variant: str, *, plan: str) -> Submitted:
        number, at_step = len(self.jobs), self._chance.randrange(1, STEPS)
        job = Submitted(key=f"chaos {number}", variant=variant, plan=plan, at_step=at_step)
        self.jobs.append(job)
        return job

    def _submit(self, job: Submitted) -> None:
        """Asked again with the same key, as a client that got no answer does."""
        config = {
            "teacher": {"model": str(self._teacher)},
            "student": {"kind": "from_teacher", "layers": 2},
            "data": {"kind": "dataset", "dataset_id": self._dataset_id, "dev_rows": 4, "max_response_tokens": 16},
            "sampling": {"kind": "adaptive_off_policy", "phi_start": 0.5, "max_new_tokens": 8},
            "training": {"max_steps": STEPS, "batch_size": 2, "checkpoint_every": 4},
            "evaluation": {"every_steps": 10, "rouge_rows": 2},
            **VARIANTS[job.variant],
        }
        # A fault is drawn a few times a minute, so a job may well be hit more often than three times in a row.
        body = {"name": f"{job.key} ({job.plan})", "config": config, "max_attempts": 100}
        answer = self.house.try_send("POST", "/v1/jobs", json=body, headers={"Idempotency-Key": job.key})
        if answer is not None:
            job.row = answer.raise_for_status().json()
            job.id = job.row["id"]

    def _carry_on(self, job: Submitted) -> None:
        status, due = job.row["status"], job.row["step"] >= job.at_step
        if status == "paused":
            self._carry_on_paused(job)
        elif job.plan == "pause" and due and status in ("queued", "running"):
            self._ask(job, "pause", then="run")
        elif job.plan == "cancel" and due and status in ("queued", "running"):
            self._ask(job, "cancel", then="run")
        elif job.plan in ("retry", "retry clean") and status == "cancelled":
            self._ask(job, "retry", then="run", json={"from_checkpoint": job.plan == "retry"})
        elif job.plan in ("retry", "retry clean") and status in ENDED:
            job.plan = "run"  # it was faster than the wish to cancel it
        elif job.plan in ("retry", "retry clean") and due and not job.row["cancel_requested"]:
            self._ask(job, "cancel", then=job.plan)

    def _carry_on_paused(self, job: Submitted) -> None:
        """A job that a full disk paused is the service's to resume, if it can see the space."""
        error = job.row["error"] or {}
        if error.get("code") == DiskFull.code and self.house.disk.tells:
            return
        if job.resume_at is None:
            job.resume_at = time.monotonic() + self._chance.uniform(0.2, 3.0)
        elif time.monotonic() > job.resume_at and self._ask(job, "resume", then=job.plan):
            job.resume_at = None

    def _ask(self, job: Submitted, what: str, *, then: str, **request: Any) -> bool:
        """True when the service has answered, if with a conflict: the job was faster, and the next look says how."""
        answer = self.house.try_send("POST", f"/v1/jobs/{job.id}/{what}", **request)
        if answer is None:
            return False
        if answer.status_code != 409:
            job.plan, job.row = then, answer.raise_for_status().json()
        return True


def variants(jobs: Sequence[Submitted]) -> dict[str, str]:
    """Which variant each accepted job has."""
    return {job.id: job.variant for job in jobs if job.id is not None}
