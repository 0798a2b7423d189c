"""One claimed job, from its stored description to a student in the artifact store, or to an error with its cure.

Knows where data and students are kept and how each way to end is recorded. Does not know Celery (`worker/tasks.py`)
or how a student is trained (`worker/distill`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from sqlalchemy.orm import Session, sessionmaker

from app.core.db import datasets, jobs, models
from app.core.db import events as event_rows
from app.core.errors import AttemptLost, NotFound
from app.core.events import Event
from app.core.ids import new_id
from app.core.job_config import DatasetData, DistillConfig, FileData
from app.core.storage import ArtifactStore
from worker.endings import ending
from worker.recorder import PATIENCE_S, Recorder, in_transaction

if TYPE_CHECKING:
    from worker.distill.trainer import DistilledStudent

log = structlog.stdlib.get_logger(__name__)

MEMORY_CURE = (
    "lower training.batch_size (and raise training.gradient_accumulation as much, for the same window), "
    "sampling.max_new_tokens, data.max_prompt_tokens or data.max_response_tokens; keep training.logits at chunked"
)


@dataclass(frozen=True, kw_only=True)
class JobRunner:
    """Runs claimed jobs. `work_folder` holds what a running job writes; `heartbeat_s` is how often it reports."""

    sessions: sessionmaker[Session]
    store: ArtifactStore
    work_folder: Path
    heartbeat_s: float
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    patience_s: float = PATIENCE_S

    def run_next(self, *, worker: str) -> str | None:
        """Claims the first runnable job and runs it to its end; its id, or None when nothing was queued."""
        with self.sessions.begin() as session:
            claim = jobs.claim_next(session, worker=worker, now=self.clock())
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
        folder, student_id = self.work_folder / claim.job_id, new_id("mdl")
        try:
            config = DistillConfig.model_validate(claim.config)
            student = self._distill(claim, config, out=folder / str(claim.attempt), student_id=student_id)
            self._succeed(claim, config, student, student_id)
        except AttemptLost as lost:
            log.warning("claim lost, nothing is written", reason=str(lost))
            self._discard(student_id)
        except Exception as error:
            self._end_badly(claim, error)
            self._discard(student_id)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _distill(self, claim: jobs.Claim, config: DistillConfig, *, out: Path, student_id: str) -> DistilledStudent:
        """Trains and stores the student. Heartbeats go on until it is stored, for that may take a while too."""
        with self._recorder(claim) as recorder:
            # Imported here: torch takes seconds, in which the job is alive, and a wake-up for nothing never needs it.
            from worker.distill.trainer import distill

            student = distill(
                self._with_local_data(config),
                out=out,
                emit=recorder.emit,
                should_stop=lambda: "cancel" if recorder.should_stop() else None,
            )
            self.store.put_folder(student.folder, models.storage_key(student_id))
        return student

    def _recorder(self, claim: jobs.Claim) -> Recorder:
        def write(session: Session, events: Sequence[Event]) -> bool:
            now = self.clock()
            event_rows.append(session, job_id=claim.job_id, attempt=claim.attempt, events=events, now=now)
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

    def _succeed(self, claim: jobs.Claim, config: DistillConfig, student: DistilledStudent, student_id: str) -> None:
        def write(session: Session) -> None:
            now = self.clock()
            models.create_student(
                session,
                model_id=student_id,
                job_id=claim.job_id,
                name=jobs.get(session, claim.job_id).name,
                parameters=student.parameters,
                weights_sha256=student.weights_sha256,
                card=model_card(config, student),
                now=now,
            )
            jobs.finish(
                session,
                job_id=claim.job_id,
                attempt=claim.attempt,
                status="succeeded",
                now=now,
                student_id=student_id,
            )

        in_transaction(self.sessions, write, patience_s=self.patience_s)
        log.info("job succeeded", student_id=student_id)

    def _end_badly(self, claim: jobs.Claim, error: Exception) -> None:
        end = ending(error, memory_cure=MEMORY_CURE, log_name="training")
        log.warning("job ended", status=end.status, code=end.code, exc_info=error)

        def write(session: Session) -> None:
            jobs.finish(
                session,
                job_id=claim.job_id,
                attempt=claim.attempt,
                status=end.status,
                now=self.clock(),
                code=end.code,
                message=end.message,
            )

        try:
            in_transaction(self.sessions, write, patience_s=self.patience_s)
        except AttemptLost as lost:
            log.warning("claim lost, nothing is written", reason=str(lost))

    def _discard(self, student_id: str) -> None:
        """Removes the stored folder of a student that no row names. A row may be there after an error: a commit whose
        confirmation was lost on the way looks like one that failed."""
        with self.sessions.begin() as session:
            try:
                models.get(session, student_id)
            except NotFound:
                self.store.delete(models.storage_key(student_id))


def model_card(config: DistillConfig, student: DistilledStudent) -> dict[str, Any]:
    """What a reader of the student wants to know: where it comes from and what became better."""
    return {
        "recipe": config.recipe,
        "teacher": config.teacher.model,
        "data": config.data.model_dump(mode="json"),
        "metrics": dict(student.metrics),
        "config": config.model_dump(mode="json"),
    }
