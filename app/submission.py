"""How a job description becomes a job: what is checked beyond its shape, and which rows are stored.

Knows that data and models must exist and fit each other. Does not know HTTP; errors carry the path in the request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session, sessionmaker

from app.core.db import datasets, jobs, models
from app.core.db.tables import Dataset, Job
from app.core.errors import InvalidRequest, NotFound
from app.core.job_config import DatasetData, DistillConfig
from app.core.model_facts import ModelFacts, check_models
from app.core.recipes import without_recipe
from app.core.schemas import CloneIn, DryRunOut, JobIn
from app.core.storage import ArtifactStore
from app.core.teacher_states import DEFAULT_LIMIT_GIB
from app.memory import estimate_bytes
from app.outlook import Outlook, look_ahead


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A description that can run, and what was found out on the way."""

    config: DistillConfig
    dataset: Dataset
    teacher: ModelFacts
    student: ModelFacts


def check(config: DistillConfig, *, sessions: sessionmaker[Session]) -> Checked:
    """Raises InvalidRequest (or a subclass) whose `field` starts with `config`. May read from disk or a model hub, so
    no transaction is open meanwhile."""
    with _fields_under("config"):
        if not isinstance(config.data, DatasetData):
            # A path in a request would let a client read any file of the machine that trains.
            raise InvalidRequest("upload the file (POST /v1/datasets) and give its id as kind dataset", "data.kind")
        with sessions.begin() as session:
            dataset = _dataset(session, config.data)
        if dataset.rows <= config.data.dev_rows:
            raise InvalidRequest(
                f"the data set has {dataset.rows} rows; hold out fewer than that, or nothing is left to train on",
                "data.dev_rows",
            )
        teacher, student = check_models(config)
    return Checked(config=config, dataset=dataset, teacher=teacher, student=student)


def dry_run(
    session: Session, checked: Checked, *, store: ArtifactStore, states_limit_bytes: int = DEFAULT_LIMIT_GIB * 2**30
) -> DryRunOut:
    """Sizes, memory, time and disk of a job that could be queued. Raises InvalidRequest when the rows are gone."""
    config, teacher, student = checked.config, checked.teacher, checked.student
    try:
        outlook = look_ahead(
            session,
            store,
            config=config,
            dataset=checked.dataset,
            teacher_parameters=teacher.parameters,
            student_parameters=student.parameters,
            state_bytes=teacher.hidden_size * (4 if config.training.precision == "float32" else 2),
            states_limit_bytes=states_limit_bytes,
        )
    except FileNotFoundError as error:
        gone = f"the rows of {checked.dataset.id} are no longer in the artifact store; upload the file again"
        raise InvalidRequest(gone, "config.data.dataset_id") from error
    return DryRunOut(
        config=config.model_dump(mode="json"),
        teacher_parameters=teacher.parameters,
        student_parameters=student.parameters,
        memory_bytes=estimate_bytes(config, teacher=teacher, student=student),
        seconds=outlook.seconds,
        seconds_basis=outlook.basis,
        disk_bytes=outlook.disk_bytes,
        warnings=[*_warnings(checked), *_disk_warnings(outlook)],
    )


def find_replay(session: Session, job_in: JobIn, *, idempotency_key: str | None) -> Job | None:
    """The job that this very request made before. Raises Conflict when its key came with another description."""
    return jobs.find_replay(
        session, key=idempotency_key, name=job_in.name, config=job_in.config, priority=job_in.priority
    )


def store(session: Session, job_in: JobIn, checked: Checked, *, idempotency_key: str | None, now: datetime) -> Job:
    """The queued job, with rows for its teacher and its untrained student, so that both can be compared at once."""
    job = jobs.create(
        session,
        name=job_in.name,
        config=checked.config,
        priority=job_in.priority,
        now=now,
        idempotency_key=idempotency_key,
        max_attempts=job_in.max_attempts,
        max_hours=job_in.max_hours,
        memory_bytes=estimate_bytes(checked.config, teacher=checked.teacher, student=checked.student)["total"],
    )
    if job.teacher_id is None:  # else a simultaneous request with the same key made all of this
        teacher, student = checked.teacher, checked.student
        job.teacher_id = models.ensure_teacher(
            session, source=teacher.source, parameters=teacher.parameters, now=now
        ).id
        job.untrained_id = models.create_untrained(
            session,
            job_id=job.id,
            name=f"{job_in.name} (untrained)",
            source=student.source,
            parameters=student.parameters,
            now=now,
        ).id
    return job


def changed(job: Job, changes: CloneIn) -> dict[str, Any]:
    """A JobIn, not yet validated: that of `job` with `changes`."""
    stored = without_recipe(job.config) if "recipe" in changes.config else job.config
    return {
        "name": changes.name or f"{job.name} (copy)"[:200],
        "config": _merged(stored, changes.config),
        "priority": job.priority if changes.priority is None else changes.priority,
        "max_attempts": changes.max_attempts or job.max_attempts,
        "max_hours": changes.max_hours or job.max_hours,
    }


def _merged(stored: Any, patch: Any) -> Any:
    """RFC 7396, but a section of another kind replaces the stored one: its fields mean nothing there."""
    if not isinstance(patch, Mapping):
        return patch
    if not isinstance(stored, Mapping) or patch.get("kind", stored.get("kind")) != stored.get("kind"):
        stored = {}
    merged = {**stored, **{key: _merged(stored.get(key), value) for key, value in patch.items()}}
    return {key: value for key, value in merged.items() if key not in patch or value is not None}


def _warnings(checked: Checked) -> Iterator[str]:
    config, dataset = checked.config, checked.dataset
    without_response = dataset.rows - dataset.rows_with_response
    if config.data.responses == "given" and without_response:
        yield f"{without_response} of {dataset.rows} rows have no response; the teacher writes them before training"
    if config.data.responses == "student" and without_response:
        yield f"{without_response} of {dataset.rows} rows have no response; the student's samples alone use them"
    if config.data.responses == "teacher":
        yield f"the teacher writes all {dataset.rows} responses before training"
    context = min((facts.context for facts in (checked.teacher, checked.student) if facts.context), default=None)
    longest = config.data.max_prompt_tokens + config.sampling.max_new_tokens
    if context is not None and longest > context:
        room = context - config.sampling.max_new_tokens
        yield f"prompts longer than {room} tokens do not fit the context of {context} tokens and will end the run"
    if checked.student.parameters >= checked.teacher.parameters:
        yield "the student is as large as its teacher"


def _disk_warnings(outlook: Outlook) -> Iterator[str]:
    # Without room for states the teacher reads at every step instead.
    needed = outlook.disk_bytes["total"] - outlook.disk_bytes["states"]
    if outlook.free_bytes is not None and needed > outlook.free_bytes:
        yield f"about {needed:,} bytes of disk are needed and {outlook.free_bytes:,} are free; see training.keep_last"


def _dataset(session: Session, data: DatasetData) -> Dataset:
    try:
        return datasets.get(session, data.dataset_id)
    except NotFound as error:
        raise InvalidRequest(f"{error.message}; upload one, or see GET /v1/datasets", "data.dataset_id") from error


@contextmanager
def _fields_under(prefix: str) -> Iterator[None]:
    """Config paths become paths of the request."""
    try:
        yield
    except InvalidRequest as error:
        raise type(error)(error.message, f"{prefix}.{error.field}" if error.field else prefix) from error
