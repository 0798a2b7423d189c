"""What a message from the broker wakes: the training task and the comparing task.

Knows Celery and how a runner is put together from settings. Does not know what a run does. The id in a message is a
hint for the log; a task takes whatever the database says is first.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

import structlog
from celery import Task
from sqlalchemy.orm import Session, sessionmaker

from app.core.db.session import make_engine, make_sessions
from app.core.folder_cache import FolderCache
from app.core.queue import COMPARE_TASK, TRAIN_TASK
from app.core.storage import ArtifactStore
from worker.celery_app import app, leaving, settings
from worker.comparisons import ComparisonRunner
from worker.jobs import JobRunner
from worker.judging import Judge, Judging, make_http, work
from worker.training_process import TrainingProcess

if TYPE_CHECKING:
    from worker.distill.compare import ModelCache

log = structlog.stdlib.get_logger(__name__)


class CompareTask(Task):
    """Keeps models loaded between comparisons, as long as the process lives."""

    @cached_property
    def models(self) -> ModelCache:
        from worker.distill.compare import ModelCache

        return ModelCache()


@app.task(name=TRAIN_TASK, bind=True)
def train(self: Task, job_id: str) -> None:
    """Runs jobs, the first runnable one by priority and then age, until none is left or this worker is to end."""
    with _sessions() as sessions:
        runner = JobRunner(
            sessions=sessions,
            store=ArtifactStore(settings.resolved_storage_url),
            work_folder=settings.home_folder / "work",
            heartbeat_s=settings.heartbeat_s,
            train=TrainingProcess(
                step_timeout_s=settings.step_timeout_s,
                states=FolderCache(settings.teacher_states_folder, limit_bytes=settings.teacher_states_bytes),
            ),
            leaving=leaving.is_set,
        )
        num_run = 0
        while not leaving.is_set() and runner.run_next(worker=_worker_name(self)) is not None:
            num_run += 1
        if num_run == 0:
            log.info("woken for nothing: no job is runnable here", hint=job_id)


@app.task(name=COMPARE_TASK, bind=True, base=CompareTask)
def compare(self: CompareTask, comparison_id: str) -> None:
    """Does what waits in the comparing queue, and goes on until nothing does."""
    with _sessions() as sessions:
        runner = ComparisonRunner(
            sessions=sessions,
            store=ArtifactStore(settings.resolved_storage_url),
            cache=lambda: self.models,
            heartbeat_s=settings.heartbeat_s,
        )
        with _judging(sessions) as judging:
            if not work(runner, worker=_worker_name(self), judging=judging):
                log.info("woken for nothing: no comparison is queued", hint=comparison_id)


@contextmanager
def _judging(sessions: sessionmaker[Session]) -> Iterator[Judging | None]:
    """A judge for batches, if the settings name one."""
    if settings.judge_url is None:
        yield None
        return
    api_key = settings.judge_api_key.get_secret_value() if settings.judge_api_key else None
    with make_http(settings.judge_url, api_key) as http:
        judge = Judge(http=http, model=settings.judge_model or "default")
        with Judging(sessions=sessions, judge=judge) as judging:
            yield judging


@contextmanager
def _sessions() -> Iterator[sessionmaker[Session]]:
    engine = make_engine(settings.resolved_database_url)
    try:
        yield make_sessions(engine)
    finally:
        engine.dispose()


def _worker_name(task: Task) -> str:
    return task.request.hostname or socket.gethostname()
