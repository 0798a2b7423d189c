"""One claimed job, from its stored description to a student in the artifact store, or to an error with its cure.

Knows where data and students are kept and how each way to end is recorded. Does not know Celery (`worker/tasks.py`),
in which process a student is trained (`worker/training_process.py`) or how (`worker/distill`).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from app.core.db import datasets, jobs, models
from app.core.db import events as event_rows
from app.core.db.tables import Worker
from app.core.errors import AttemptLost, DiskFull, NotFound, Paused, TimeLimit
from app.core.events import Event
from app.core.ids import new_id
from app.core.job_config import DatasetData, DistillConfig, FileData
from app.core.storage import ArtifactStore
from worker.endings import WORTH_ANOTHER_TRY, as_told, ending
from worker.job_checkpoints import JobCheckpoints
from worker.memory_advice import advice
from worker.recorder import PATIENCE_S, Recorder, in_transaction
from worker.replays import without_replays
from worker.training import Stop, Train, TrainedStudent

log = structlog.stdlib.get_logger(__name__)

LOG_NAME = "training"
# A full disk must have this much more than when it was full, before a job that waits for space is tried again.
_MORE_SPACE_BYTES = 16 * 2**20


@dataclass(frozen=True, kw_only=True)
class JobRunner:
    """Runs claimed jobs. `work_folder` holds what a running job writes; `heartbeat_s` is how often it reports; `train`
    trains; `leaving()` turns true when this worker is to end: the job is then handed back with a checkpoint."""

    sessions: sessionmaker[Session]
    store: ArtifactStore
    work_folder: Path
    heartbeat_s: float
    train: Train
    leaving: Callable[[], bool] = lambda: False
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    patience_s: float = PATIENCE_S

    def run_next(self, *, worker: str) -> str | None:
        """Claims the first runnable job that fits this worker and runs it to its end; its id, or None when nothing was
        runnable."""
        with self.sessions.begin() as session:
            memory_bytes = session.scalar(select(Worker.memory_bytes).where(Worker.name == worker))
            claim = jobs.claim_next(session, worker=worker, now=self.clock(), memory_bytes=memory_bytes)
        if claim is None:
            return None
        with structlog.contextvars.bound_contextvars(job_id=claim.job_id, attempt=claim.attempt):
            log.info("job claimed")
            self._remove_leftovers()
            self._run(claim)
        return claim.job_id

    def _remove_leftovers(self) -> None:
        """Folders of jobs that do not run any more: what killed workers left behind."""
        for folder in self.work_folder.glob("job_*"):
            with self.sessions.begin() as session:
                try:
                    is_running = jobs.get(session, folder.name).status == "running"
                except NotFound:
                    is_running = False
            if not is_running:
                shutil.rmtree(folder, ignore_errors=True)

    def _run(self, claim: jobs.Claim) -> None:
        """Every way to end is written down, except a lost claim: then another worker writes."""
        # Of this attempt only: a newer one may have begun on the same machine.
        folder, student_id = self.work_folder / claim.job_id / str(claim.attempt), new_id("mdl")
        limit = _Limit(claim.seconds_left)
        try:
            config = DistillConfig.stored(claim.config)
            with self._recorder(claim) as recorder:
                student = self._train(claim, config, recorder, limit, out=folder)
                self.store.put_folder(student.folder, models.storage_key(student_id))
                teacher_id = self._store_teacher(student)
            self._succeed(claim, config, student, student_id, teacher_id)
        except AttemptLost as lost:
            log.warning("claim lost, nothing is written", reason=str(lost))
            self._discard(student_id)
        except Exception as error:
            self._end_badly(claim, limit.instead_of(error))
            self._discard(student_id)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):
                folder.parent.rmdir()  # unless another attempt's folder is in it

    def _train(
        self, claim: jobs.Claim, config: DistillConfig, recorder: Recorder, limit: _Limit, *, out: Path
    ) -> TrainedStudent:
        """Goes on from the job's newest checkpoint, and keeps new ones. Heartbeats go on meanwhile."""

        def should_stop() -> Stop | None:
            return recorder.should_stop() or ("pause" if self.leaving() or limit.is_over() else None)

        kept = JobCheckpoints(self.store, job_id=claim.job_id, attempt=claim.attempt, scratch=out / "checkpoints")
        kept.take_over(training_events=claim.training_events)
        with kept.kept(without_replays(recorder.emit, stored=claim.training_events)) as emit:
            return self.train(
                self._with_local_data(config), out=out, checkpoints=kept.folder, emit=emit, should_stop=should_stop
            )

    def _store_teacher(self, student: TrainedStudent) -> str | None:
        """Keeps a teacher that the run tuned; the id of its row to be."""
        if student.teacher_folder is None:
            return None
        teacher_id = new_id("mdl")
        self.store.put_folder(student.teacher_folder, models.storage_key(teacher_id))
        return teacher_id

    def _recorder(self, claim: jobs.Claim) -> Recorder:
        def write(session: Session, events: Sequence[Event], num_stored: int) -> Stop | None:
            now, after = self.clock(), claim.last_seq + num_stored
            event_rows.append(session, job_id=claim.job_id, attempt=claim.attempt, events=events, now=now, after=after)
            return jobs.heartbeat(session, job_id=claim.job_id, attempt=claim.attempt, now=now)

        return Recorder(sessions=self.sessions, write=write, heartbeat_s=self.heartbeat_s, patience_s=self.patience_s)

    def _with_local_data(self, config: DistillConfig) -> DistillConfig:
        """The description with an uploaded data set replaced by its rows as a file on this machine."""
        if not isinstance(config.data, DatasetData):
            return config
        try:
            path = self.store.local_path(datasets.storage_key(config.data.dataset_id))
        except FileNotFoundError as error:
            message = f"the rows of data set {config.data.dataset_id} are not in the artifact store; upload it again"
            raise NotFound(message, "data.dataset_id") from error
        rest = config.data.model_dump(exclude={"kind", "dataset_id"})
        return config.model_copy(update={"data": FileData(path=path, **rest)})

    def _succeed(
        self,
        claim: jobs.Claim,
        config: DistillConfig,
        student: TrainedStudent,
        student_id: str,
        teacher_id: str | None,
    ) -> None:
        def write(session: Session) -> None:
            now = self.clock()
            name = jobs.get(session, claim.job_id).name
            card = model_card(config, student)
            if teacher_id is not None:
                models.create_tuned_teacher(
                    session, model_id=teacher_id, job_id=claim.job_id, name=name, card=card, now=now
                )
            models.create_student(
                session,
                model_id=student_id,
                job_id=claim.job_id,
                name=name,
                parameters=student.parameters,
                weights_sha256=student.weights_sha256,
                card=card,
                now=now,
            )
            self._finish(session, claim, status="succeeded", student_id=student_id)

        in_transaction(self.sessions, write, patience_s=self.patience_s)
        log.info("job succeeded", student_id=student_id)

    def _end_badly(self, claim: jobs.Claim, error: Exception) -> None:
        """Writes down how an attempt without a student ended. People's wishes are the database's to weigh: what is
        queued here becomes paused or cancelled there if somebody asked for that."""
        told = as_told(error, log_name=LOG_NAME)
        log.warning("attempt ended", code=told.code, exc_info=error)

        def write(session: Session) -> None:
            if isinstance(told, Paused):
                message = "handed back by a worker that is shut down" if self.leaving() else str(told)
                self._finish(session, claim, status="queued", message=message)
            elif isinstance(told, DiskFull):
                free = self.store.free_bytes()
                needed = None if free is None else free + _MORE_SPACE_BYTES
                self._finish(
                    session, claim, status="paused", code=told.code, message=str(told), disk_needed_bytes=needed
                )
            else:
                self._fail(session, claim, told)

        try:
            in_transaction(self.sessions, write, patience_s=self.patience_s)
        except AttemptLost as lost:
            log.warning("claim lost, nothing is written", reason=str(lost))

    def _fail(self, session: Session, claim: jobs.Claim, error: Exception) -> None:
        end = ending(error, memory_cure=_memory_cure(claim), log_name=LOG_NAME)
        if isinstance(error, WORTH_ANOTHER_TRY):
            jobs.give_up_attempt(
                session,
                job_id=claim.job_id,
                attempt=claim.attempt,
                now=self.clock(),
                code=end.code or "",
                message=end.message,
            )
        else:
            self._finish(session, claim, status=end.status, code=end.code, message=end.message)

    def _finish(
        self,
        session: Session,
        claim: jobs.Claim,
        *,
        status: Literal["succeeded", "failed", "cancelled", "paused", "queued"],
        **outcome: Any,
    ) -> None:
        jobs.finish(session, job_id=claim.job_id, attempt=claim.attempt, status=status, now=self.clock(), **outcome)

    def _discard(self, student_id: str) -> None:
        """Removes the stored folder of a student that no row names. A row may be there after an error: a commit whose
        confirmation was lost on the way looks like one that failed."""
        with self.sessions.begin() as session:
            try:
                models.get(session, student_id)
            except NotFound:
                self.store.delete(models.storage_key(student_id))


class _Limit:
    """The time that is left of a job's `max_hours` when an attempt begins; None for ever."""

    def __init__(self, seconds_left: float | None) -> None:
        self._ends_at = None if seconds_left is None else time.monotonic() + seconds_left

    def is_over(self) -> bool:
        return self._ends_at is not None and time.monotonic() >= self._ends_at

    def instead_of(self, error: Exception) -> Exception:
        """What ended the attempt: a pause after the limit was nobody's wish."""
        if isinstance(error, Paused) and self.is_over():
            return TimeLimit("the job's max_hours are used up; its checkpoint is kept: retry it to go on, or clone it")
        return error


def _memory_cure(claim: jobs.Claim) -> str:
    try:
        config = DistillConfig.stored(claim.config)
    except ValueError:
        return ""
    return advice(config, needed_bytes=claim.memory_bytes)


def model_card(config: DistillConfig, student: TrainedStudent) -> dict[str, Any]:
    """What a reader of the student wants to know: where it comes from and what became better."""
    return {
        "recipe": config.recipe,
        "teacher": config.teacher.model,
        "data": config.data.model_dump(mode="json"),
        "metrics": dict(student.metrics),
        "config": config.model_dump(mode="json"),
    }
