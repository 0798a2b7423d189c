"""What tests of training jobs do to the database around a run, and trainings that end when a test wants them to.

Real jobs of a real tiny teacher. Knows no fixtures: `conftest.py` has them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from sqlalchemy.orm import Session, sessionmaker

from app.core.db import datasets, events, job_requests, jobs, models
from app.core.db.tables import EventRow, Job
from app.core.errors import WorkerLost
from app.core.events import Emit, Event, StepDone, is_training_event, parse_event
from app.core.job_config import DistillConfig
from app.core.storage import ArtifactStore
from tests.waiting import until
from worker.training import Stop, Train, TrainedStudent, train_here

NOTHING: Mapping[str, Any] = MappingProxyType({})
# What a run said of its course, kind and step, and the digest of the student that it made.
Course: TypeAlias = tuple[list[tuple[str, int]], str | None]


class House:
    """What the tests do to the database around a run."""

    def __init__(self, sessions: sessionmaker[Session], store: ArtifactStore, teacher: Path, rows: Path) -> None:
        self.sessions, self.store, self.teacher = sessions, store, teacher
        store.put_file(rows, datasets.storage_key("ds_test"))

    def submit(
        self, *, dataset_id: str = "ds_test", priority: int = 0, job: Mapping[str, Any] = NOTHING, **training: Any
    ) -> str:
        config = DistillConfig.model_validate(
            {
                "teacher": {"model": str(self.teacher)},
                "student": {"kind": "from_teacher", "layers": 1},
                "data": {"kind": "dataset", "dataset_id": dataset_id, "dev_rows": 4},
                "sampling": {"max_new_tokens": 8},
                "training": {"max_steps": 3, "batch_size": 2, **training},
                "evaluation": {"rouge_rows": 2},
            }
        )
        with self.sessions.begin() as session:
            return jobs.create(session, name="test", config=config, priority=priority, now=datetime.now(UTC), **job).id

    def job(self, job_id: str) -> Job:
        with self.sessions.begin() as session:
            return jobs.get(session, job_id)

    def events(self, job_id: str) -> list[EventRow]:
        with self.sessions.begin() as session:
            return list(events.page(session, job_id=job_id, after=0, limit=10_000)[0])

    def payloads(self, job_id: str) -> list[Mapping[str, Any]]:
        return [row.payload for row in self.events(job_id)]

    @contextmanager
    def once_it_trains(self, job_id: str, act: Callable[[Session], object]) -> Iterator[None]:
        """Runs `act` in a transaction of its own, in another thread, when the job has done a step. If that fails, the
        job is cancelled, so that the block ends."""

        def run() -> None:
            until(lambda: self.job(job_id).step >= 1)
            try:
                with self.sessions.begin() as session:
                    act(session)
            except BaseException:
                with self.sessions.begin() as session:
                    job_requests.request_cancel(session, job_id=job_id, now=datetime.now(UTC))
                raise

        with ThreadPoolExecutor(1) as pool:
            acted = pool.submit(run)
            yield
            acted.result()


def training_events(house: House, job_id: str) -> list[tuple[str, int]]:
    """Kind and step of what the run said of its course, in the order of `seq`, which has no hole."""
    rows = house.events(job_id)
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    return [(told.kind, told.step) for row in rows if is_training_event(told := parse_event(row.payload))]


def student_hash(house: House, job_id: str) -> str | None:
    with house.sessions.begin() as session:
        return models.get(session, house.job(job_id).student_id).weights_sha256


def waiting_for_a_wish(train: Train) -> Train:
    """Goes on after its first step only once somebody wants it to stop: a short training is not over before."""

    def run(config: DistillConfig, *, emit: Emit, should_stop: Callable[[], Stop | None], **where: Path) -> Any:
        has_stepped = threading.Event()

        def tell(event: Event) -> None:
            emit(event)
            if isinstance(event, StepDone):
                has_stepped.set()

        def wish() -> Stop | None:
            if has_stepped.is_set():
                until(lambda: should_stop() is not None)
            return should_stop()

        return train(config, emit=tell, should_stop=wish, **where)

    return run


def killed_at(step: int) -> Train:
    """Trains until that step, and then dies: what was said last is lost, and nothing is put in order."""

    def train(config: DistillConfig, *, emit: Emit, **rest: Any) -> TrainedStudent:
        def emit_until(event: Event) -> None:
            if isinstance(event, StepDone) and event.step == step:
                raise WorkerLost("killed")
            emit(event)

        return train_here(config, emit=emit_until, **rest)

    return train
