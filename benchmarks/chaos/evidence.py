"""What a run left behind, read from the service, its database, its folders and the list of processes.

Knows where to look. Does not know what is right (`verdict.py`), but for files and processes: none may be left.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from app.cleaner import Cleaner, Keep
from app.core.db.tables import Comparison, Dataset, Job, Metric, Model
from app.core.events import StatusChanged, StepDone, is_training_event, parse_event
from app.core.folder_cache import FolderCache
from app.core.storage import ArtifactStore
from benchmarks.chaos.house import House, processes_of, utc_now
from benchmarks.chaos.verdict import Course, Said
from worker.distill.checkpoint import complete_checkpoints
from worker.distill.disk import UNFINISHED

_LOSS = "loss/total"
_KEPT_DAYS = 14.0
_CHECKPOINTS_AT_MOST = 3  # training.keep_last, and the best
_GONE_WITHIN_S = 30.0
_COMPARING_ATTEMPTS = 3


def courses(house: House) -> dict[str, Course | None]:
    """Of every job in the database."""
    with house.sessions.begin() as session:
        job_ids = session.scalars(select(Job.id).order_by(Job.id)).all()
    return {job_id: course(house, job_id) for job_id in job_ids}


def course(house: House, job_id: str) -> Course:
    rows = list(_events(house, job_id))
    runs: list[list[Said]] = [[]]
    successes = 0
    for row in rows:
        event = parse_event(row["event"])
        if isinstance(event, StatusChanged):
            successes += event.status == "succeeded"
            if event.message == "retried from nothing":
                runs.append([])
        elif is_training_event(event):
            loss = event.metrics[_LOSS] if isinstance(event, StepDone) else None
            runs[-1].append((event.kind, event.step or 0, loss))  # type: ignore[union-attr]
    with house.sessions.begin() as session:
        points = select(Metric.step, Metric.value).where(Metric.job_id == job_id, Metric.name == _LOSS)
        students = select(Model.weights_sha256).where(Model.job_id == job_id, Model.kind == "student")
        return Course(
            status=house.get(f"/v1/jobs/{job_id}")["status"],
            numbers=[row["seq"] for row in rows],
            attempts=[row["attempt"] for row in rows],
            runs=runs,
            curve=[(step, value) for step, value in session.execute(points.order_by(Metric.step))],
            students=[digest or "" for digest in session.scalars(students)],
            successes=successes,
        )


def _events(house: House, job_id: str) -> Iterator[Mapping[str, Any]]:
    after, has_more = 0, True
    while has_more:
        page = house.get(f"/v1/jobs/{job_id}/events", after=after, limit=200)
        yield from page["data"]
        after, has_more = (page["data"][-1]["seq"] if page["data"] else after), page["has_more"]


def unfinished_comparisons(sessions: sessionmaker[Session]) -> list[str]:
    """Those that neither succeeded nor were given up after as many lost workers as are promised."""
    is_given_up = (Comparison.error_code == "worker_lost") & (Comparison.attempt >= _COMPARING_ATTEMPTS)
    with sessions.begin() as session:
        rows = session.execute(select(Comparison.id, is_given_up).where(Comparison.status != "succeeded"))
        return [comparison_id for comparison_id, given_up in rows if not given_up]


def trainings_left(house: House) -> list[str]:
    """Training processes that are there although no job runs; they get some seconds to end."""
    deadline = time.monotonic() + _GONE_WITHIN_S
    while (left := house.trainings()) and time.monotonic() < deadline:
        house.tick()
    return [f"training process {process.pid} outlives every job" for process in left]


def processes_left(home: Path) -> list[str]:
    """Processes that are there although the service has ended."""
    return [f"process {process.pid} outlives the service: {process.name()}" for process in processes_of(home)]


def files_left(sessions: sessionmaker[Session], *, storage: Path, work_folder: Path, states: FolderCache) -> list[str]:
    """Files that nothing accounts for: right now, and after a cleaning once everything's time is over."""
    store = ArtifactStore(storage.as_uri())
    later = timedelta(days=_KEPT_DAYS + 1)
    cleaner = Cleaner(
        sessions=sessions,
        store=store,
        work_folder=work_folder,
        states=states,
        keep=Keep(checkpoints=timedelta(days=_KEPT_DAYS), events=None, comparisons=None),
        clock=lambda: utc_now() + later,
    )
    with sessions.begin() as session:
        succeeded = set(session.scalars(select(Job.id).where(Job.status == "succeeded")))
    left = list(_checkpoints_left(storage / "checkpoints", succeeded))
    cleaner.clean()  # what a killed process leaves half done is retention's to find, in its time
    halves = [path for path, _ in states.unfinished()]
    return [
        *left,
        *_of_nobody(sessions, store),
        *(f"{path} is left" for path in [*sorted(work_folder.glob("*")), *halves]),
    ]


def _checkpoints_left(folder: Path, succeeded: set[str]) -> Iterator[str]:
    """What jobs that ended should not have beside their newest attempt's last checkpoints and its best. One that was
    cancelled right after its process had been killed keeps a half one too, until it is retried or its time is over."""
    for job in sorted(folder.glob("job_*")):
        attempts = sorted((path for path in job.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
        for attempt in attempts[:-1]:  # a process that woke up too late may have made an empty one
            if found := complete_checkpoints(attempt):
                yield f"{len(found)} checkpoints in {attempt}, which nobody reads"
        for attempt in attempts[-1:]:
            if (kept := len(complete_checkpoints(attempt))) > _CHECKPOINTS_AT_MOST:
                yield f"{kept} checkpoints in {attempt}"
            if job.name in succeeded:
                yield from (f"{path} was never finished" for path in sorted(attempt.glob(f"{UNFINISHED}*")))


def _of_nobody(sessions: sessionmaker[Session], store: ArtifactStore) -> Iterator[str]:
    with sessions.begin() as session:
        kept = set(session.scalars(select(Model.source).where(Model.kind != "untrained")))
        kept |= {f"datasets/{dataset_id}.jsonl" for dataset_id in session.scalars(select(Dataset.id))}
    for key in (
        f"{folder}/{name}" for folder in ("checkpoints", "datasets", "students") for name in store.children(folder)
    ):
        if key not in kept:
            yield f"{key} belongs to nothing, and cleaning left it"
