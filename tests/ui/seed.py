"""A database with jobs in every status, for quick tests of the page and for looking at it: not results of anything.

`python -m tests.ui.seed HOME [--grow SECONDS]` fills the embedded database below HOME; with --grow the running job goes
on for that long. Written through app.core.db, so the API reads it like any other. The end-to-end tests train for real.
"""

from __future__ import annotations

import json
import math
import random
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session, sessionmaker

from app.core.compare_schemas import Answer, ChatMessage, ComparisonIn
from app.core.db import comparisons, datasets, events, jobs, models
from app.core.db.migrate import upgrade
from app.core.db.session import make_engine, make_sessions
from app.core.events import Correction, Evaluated, Event, PhaseProgress, RunStarted, SampleDrawn, StepDone, Warned
from app.core.ids import new_id
from app.core.job_config import DistillConfig
from app.core.schemas import RowProblem
from app.core.settings import ServiceSettings
from app.core.storage import ArtifactStore
from tests.ui import seed_compare

TEACHER = "HuggingFaceTB/SmolLM2-135M-Instruct"
HUGE = "🦙" * 300 + "W" * 2000  # one word wider than any screen
HOSTILE = "<script>window.hacked = 1</script><b>bold</b> [link](javascript:alert(1)) ‮right-to-left 🦙"
STEPS = 100


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


def step_events(step: int, rng: random.Random) -> list[Event]:
    """What a run says at one step, with curves of plausible shapes."""
    done = step / STEPS
    noise = rng.gauss(0, 0.04)
    sft, dac, span = 2.4 - 0.7 * done + noise, 1.5 * math.exp(-2 * done) + 0.35 + noise, 0.012 - 0.004 * done
    fresh = rng.random() < done
    metrics = {
        "loss/total": sft + dac + span,
        "loss/sft": sft,
        "loss/dac_kl": dac,
        "loss/span": span,
        "dac_kl/lower": 0.03 + 0.01 * noise,
        "dac_kl/upper": 0.9 - 0.05 * done + 0.2 * noise,
        "dac_kl/kept_mass": 0.97 + 0.1 * noise,
        "dac_kl/kept_mass_beside_target": min(1.0, 0.8 + noise),
        "dac_kl/floor_held": max(0.0, 0.04 + noise / 4),
        "dac_kl/kept_classes": 2.6 - 0.8 * done + noise,
        "sampling/phi": 0.1 * (step // 30),
        "sampling/buffer": 8.0 * step * done,
        "train/learning_rate": 5e-5 * (step / 5 if step < 5 else 0.5 * (1 + math.cos(math.pi * done))),
        "train/grad_norm": 1.2 + 6 * noise**2 + 0.6 * math.exp(-4 * done),
        "train/tokens_per_s": (420 if fresh else 900) + 500 * noise,
        "memory/host_bytes": 2.1e9 + 4e6 * step,
        "time/teacher_s": 0.7 + noise / 2,
        "time/student_s": 1.1 + noise / 2,
        "time/loss_s": 0.35,
        "time/data_s": 0.02,
        "time/generate_s": 2.1 + noise if fresh else 0.0,
        "time/scrg_s": 0.8 + noise / 2 if fresh else 0.0,
    }
    if fresh:
        metrics |= {"scrg/mismatch_rate": 0.3 - 0.1 * done + noise, "scrg/error_position": 0.44 + 2 * noise}
    told: list[Event] = [
        StepDone(
            step=step,
            max_steps=STEPS,
            source="fresh" if fresh else "ground_truth",
            tokens=700,
            tokens_per_s=metrics["train/tokens_per_s"],
            eta_s=(STEPS - step) * 2.3,
            metrics=metrics,
        )
    ]
    if fresh and step % 6 == 0:
        told.append(
            Correction(
                step=step,
                prompt="Name three uses of baking soda.",
                before="Baking soda can be used to clean surfaces, to",
                student_token=" eat",
                teacher_token=" remove",
                dropped=" eat the smell of the kitchen and then the kitchen.",
                regenerated=" remove odours from a fridge, and to help dough rise.",
                error_position=10,
                kl=3.21 + noise,
            )
        )
    return told


def evaluation_events(step: int) -> list[Event]:
    done = step / STEPS
    quality = (
        "the the sky sky",
        "The sky is blue because light.",
        "The sky is blue because air scatters blue light more.",
    )
    text = quality[min(2, int(3 * done))]
    values = {"eval/kl_ts": 1.9 * math.exp(-1.6 * done) + 0.2, "eval/loss": 2.9 - 0.9 * done}
    values |= {"eval/rouge_l": 0.08 + 0.3 * done, "eval/top1_agreement": 0.31 + 0.3 * done}
    return [
        Evaluated(step=step, metrics=values),
        SampleDrawn(step=step, prompt="Why is the sky blue?", text=text, reference="Air scatters blue light most."),
        SampleDrawn(
            step=step, prompt="Write a haiku about rain.", text=f"Rain falls on the roof\n{text}", reference=None
        ),
    ]


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
        compared = self._comparison(succeeded, student)
        return Seeded(found, running, succeeded, failed, queued, hostile, compared, *self._more(found, compared))

    def _more(self, dataset_id: str, comparison_id: str) -> tuple[str, str]:
        with self._sessions.begin() as session:
            ids = comparisons.get(session, comparison_id).request["model_ids"]
            seed_compare.add_reading(session, comparison_id, ids, self._now)
            blind = seed_compare.add_blind(session, [ids[0], ids[-1]], self._now)
            return blind, seed_compare.add_batch(session, dataset_id, [ids[0], ids[-1]], HOSTILE, self._now)

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
        rng = random.Random(job_id)
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

    def _comparison(self, job_id: str, student: str | None) -> str:
        with self._sessions.begin() as session:
            job = jobs.get(session, job_id)
            ids = [job.teacher_id or "", job.untrained_id or "", student or ""]
            request = ComparisonIn(model_ids=ids, messages=[ChatMessage(role="user", content="Why is the sky blue?")])
            created = comparisons.create(session, request=request, now=self._now)
            claim = comparisons.claim_next(session, worker="seed", now=self._now)
            assert claim is not None
            texts = ("Air scatters blue light more than red light.", HOSTILE * 3, "The sky is blue because of light.")
            answers = [
                Answer(
                    model_id=one,
                    text=text,
                    tokens=40,
                    seconds=1.9,
                    tokens_per_s=21.05,
                    finished=one != ids[1],
                    parameters=134_515_008 if one == ids[0] else 63_720_000,
                    weights_sha256=f"{index}a" * 32,
                )
                for index, (one, text) in enumerate(zip(ids, texts, strict=True))
            ]
            comparisons.finish(
                session,
                comparison_id=created.id,
                attempt=claim.attempt,
                now=self._now,
                answers=answers,
                token_ids={one: [1, 2, 3] for one in ids},
            )
            return created.id


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
