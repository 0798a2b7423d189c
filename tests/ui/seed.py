"""A database with jobs in every status, for quick tests of the page and for looking at it: not results of anything.

`python -m tests.ui.seed HOME [--grow SECONDS]` fills the embedded database below HOME; with --grow the running job goes
on for that long. Written through app.core.db, so the API reads it like any other. The end-to-end tests train for real.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session, sessionmaker

from app.core.db import datasets, events, jobs, models
from app.core.db.migrate import upgrade
from app.core.db.session import make_engine, make_sessions
from app.core.events import Event, PhaseProgress, RunStarted, SampleDrawn, Warned
from app.core.ids import new_id
from app.core.job_config import DistillConfig
from app.core.schemas import RowProblem
from app.core.settings import ServiceSettings
from app.core.storage import ArtifactStore
from tests.ui import seed_compare
from tests.ui.seed_events import STEPS, evaluation_events, step_events

TEACHER = "HuggingFaceTB/SmolLM2-135M-Instruct"
HUGE = "🦙" * 300 + "W" * 2000  # one word wider than any screen
HOSTILE = "<script>window.hacked = 1</script><b>bold</b> [link](javascript:alert(1)) ‮right-to-left 🦙"


@dataclass(frozen=True)
class Seeded:
    """Ids of what was written."""

    dataset: str
    running: str
    succeeded: str
    failed: str
    queued: str
    hostile: str
    comparison: str
    checkpointed: str
    blind: str
    batch: str


def seed(home: Path) -> Seeded:
    """Fills a fresh database below `home`."""
    settings = ServiceSettings(home=home)
    upgrade(settings.resolved_database_url)
    engine = make_engine(settings.resolved_database_url)
    try:
        return _Writer(make_sessions(engine), ArtifactStore(settings.resolved_storage_url)).everything()
    finally:
        engine.dispose()


def config(dataset: str, **changes: Any) -> DistillConfig:
    description: dict[str, Any] = {
        "teacher": {"model": TEACHER},
        "student": {"kind": "from_teacher", "layers": 10},
        "data": {"kind": "dataset", "dataset_id": dataset},
        "training": {"max_steps": STEPS},
    }
    return DistillConfig.model_validate(description | changes)


class _Writer:
    """Writes jobs the way API and worker do: claim, append, finish."""

    def __init__(self, sessions: sessionmaker[Session], store: ArtifactStore) -> None:
        self._sessions = sessions
        self._store = store
        self._now = datetime.now(UTC) - timedelta(hours=3)

    def everything(self) -> Seeded:
        with self._sessions.begin() as session:
            found = datasets.create(
                session,
                dataset_id=new_id("ds"),
                name="prompts.jsonl",
                format="prompt",
                rows=300,
                rows_with_response=0,
                problems=[RowProblem(row=17, message="has no prompt")],
                sha256="0" * 64,
                now=self._now,
            ).id
        with self._store.open(datasets.storage_key(found), "wb") as rows:
            for i in range(300):
                turn = {"role": "user", "content": f"{'Why is the sky blue? ' * (1 + i % 7)}Answer {i}."}
                rows.write(json.dumps({"messages": [turn], "response": None}).encode() + b"\n")
        succeeded = self._job("sky 10 layers", config(found))
        student = self._run(succeeded, STEPS, outcome="succeeded")
        failed = self._job("too large a batch", config(found, training={"max_steps": STEPS, "batch_size": 512}))
        self._run(failed, 3, outcome="failed")
        hostile = self._job(HOSTILE, config(found, teacher={"model": "/models/<img src=x onerror=alert(1)>"}))
        self._run(hostile, 8, outcome="succeeded", said=HOSTILE)
        self._now = datetime.now(UTC) - timedelta(minutes=2)
        running = self._job("sky 12 layers, kd", config(found, student={"kind": "from_teacher", "layers": 12}))
        self._run(running, 46, outcome=None)
        queued = self._job("after lunch", config(found, recipe="kd"))
        self._checkpoints(succeeded, (60, 80, 100))
        return Seeded(found, running, succeeded, failed, queued, hostile, *self._asked(found, succeeded, student or ""))

    def _asked(self, dataset_id: str, job_id: str, student_id: str) -> tuple[str, str, str, str]:
        """A comparison that was read, one with a checkpoint, a blind one and a batch."""
        now = self._now
        with self._sessions.begin() as session:
            job = jobs.get(session, job_id)
            ids = [job.teacher_id or "", job.untrained_id or "", student_id]
            compared = seed_compare.add_comparison(session, ids, HOSTILE, now)
            seed_compare.add_reading(session, compared, ids, now)
            checkpointed = seed_compare.add_comparison(session, [ids[0], f"{job_id}@60", ids[2]], "Blue light.", now)
            pair = [ids[0], ids[2]]
            blind = seed_compare.add_blind(session, pair, now)
            return compared, checkpointed, blind, seed_compare.add_batch(session, dataset_id, pair, HOSTILE, now)

    def _checkpoints(self, job_id: str, steps: Sequence[int]) -> None:
        """What the list of checkpoints reads: manifests. Nobody loads these."""
        for step in steps:
            moment = {"phase": "training", "step": step, "training_events": step, "best_step": steps[1]}
            files = {"weights.safetensors": {"bytes": 254_880_000, "sha256": "0" * 64}}
            folder = f"{jobs.checkpoints_key(job_id)}/1/step-{step:08d}"
            with self._store.open(f"{folder}/manifest.json", "wb") as file:
                file.write(json.dumps({"moment": moment, "files": files}).encode())

    def _job(self, name: str, description: DistillConfig) -> str:
        self._now += timedelta(minutes=1)
        with self._sessions.begin() as session:
            job = jobs.create(session, name=name, config=description, priority=0, now=self._now)
            teacher = models.ensure_teacher(
                session, source=description.teacher.model, parameters=134_515_008, now=self._now
            )
            untrained = models.create_untrained(
                session,
                job_id=job.id,
                name=name,
                source=description.teacher.model,
                parameters=63_720_000,
                now=self._now,
            )
            job.teacher_id, job.untrained_id = teacher.id, untrained.id
            return job.id

    def _run(self, job_id: str, steps: int, *, outcome: Any, said: str | None = None) -> str | None:
        rng = random.Random(steps)  # not of the id, which is another one every time: so would be what a test finds
        told: list[Event] = [
            PhaseProgress(phase="loading"),
            RunStarted(
                teacher_parameters=134_515_008,
                student_parameters=63_720_000,
                vocabulary_size=49_152,
                train_rows=268,
                dev_rows=32,
                max_steps=STEPS,
                device="cpu",
                precision="float32",
            ),
            PhaseProgress(phase="teacher_responses", done=268, total=268),
            *evaluation_events(0),
            Warned(
                code="span_no_pairs", message="9 of 268 responses have no phrase; the span loss skips them.", step=0
            ),
        ]
        for step in range(1, steps + 1):
            told += step_events(step, rng) + (evaluation_events(step) if step % 20 == 0 else [])
        if said:
            told.append(SampleDrawn(step=steps, prompt=said, text=said + HUGE, reference=said))
        with self._sessions.begin() as session:
            claim = jobs.claim_next(session, worker="seed", now=self._now)
            assert claim is not None
            assert claim.job_id == job_id
            events.append(session, job_id=job_id, attempt=claim.attempt, events=told, now=self._now)
            if outcome is None:
                return None
            return self._finish(session, job_id, claim.attempt, outcome)

    def _finish(self, session: Session, job_id: str, attempt: int, outcome: Any) -> str | None:
        ended: Mapping[str, Any] = {"job_id": job_id, "attempt": attempt, "now": self._now + timedelta(minutes=4)}
        if outcome == "failed":
            message = "The device ran out of memory at step 3. Lower training.batch_size or sampling.max_new_tokens."
            jobs.finish(session, status="failed", code="out_of_memory", message=message, **ended)
            return None
        student = models.create_student(
            session,
            model_id=new_id("mdl"),
            job_id=job_id,
            name=jobs.get(session, job_id).name,
            parameters=63_720_000,
            weights_sha256="5f" * 32,
            card={},
            now=self._now,
        )
        jobs.finish(session, status=outcome, student_id=student.id, **ended)
        return student.id


def grow(home: Path, job_id: str, seconds: float) -> None:
    """Lets the running job go on, a step every 0.7 s, so that curves can be seen to move."""
    engine = make_engine(ServiceSettings(home=home).resolved_database_url)
    sessions, rng, ends = make_sessions(engine), random.Random(1), time.monotonic() + seconds
    for step in range(47, STEPS + 1):
        if time.monotonic() > ends:
            break
        told = step_events(step, rng) + (evaluation_events(step) if step % 20 == 0 else [])
        with sessions.begin() as session:
            events.append(session, job_id=job_id, attempt=1, events=told, now=datetime.now(UTC))
        time.sleep(0.7)
    engine.dispose()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    seeded = seed(folder)
    print(seeded, flush=True)
    if sys.argv[2:3] == ["--grow"]:
        grow(folder, seeded.running, float(sys.argv[3]))
