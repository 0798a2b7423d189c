"""Queries on models: teachers (one row per source), untrained students and distilled students (one per job each).

Knows rows of the `models` table. Does not read weights; parameters and digests are what the caller found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.core.db import comparisons
from app.core.db.rows import get_row, newest_first
from app.core.db.tables import Job, Model
from app.core.errors import Conflict
from app.core.ids import new_id
from app.core.schemas import ModelOut

ModelKind = Literal["teacher", "untrained", "student"]


def storage_key(model_id: str) -> str:
    """The folder of a distilled student in the artifact store (and the row's `source`)."""
    return f"students/{model_id}"


def ensure_teacher(session: Session, *, source: str, parameters: int | None, now: datetime) -> Model:
    """The teacher with this `source` (hub id, folder or .gguf file), made on first use."""
    query = select(Model).where(Model.kind == "teacher", Model.source == source)
    teacher = session.scalar(query)
    if teacher is None:
        teacher = _row(kind="teacher", name=source, job_id=None, source=source, parameters=parameters, now=now)
        try:
            with session.begin_nested():
                session.add(teacher)
        except IntegrityError:  # another request was faster
            teacher = session.scalars(query).one()
    return teacher


def create_untrained(
    session: Session, *, job_id: str, name: str, source: str, parameters: int | None, now: datetime
) -> Model:
    """The student of `job_id` as it is before training: rebuilt from the job's config whenever it is asked."""
    return _added(
        session,
        _row(kind="untrained", name=name, job_id=job_id, source=source, parameters=parameters, now=now),
    )


def create_student(
    session: Session,
    *,
    model_id: str,
    job_id: str,
    name: str,
    parameters: int,
    weights_sha256: str,
    card: Mapping[str, Any],
    now: datetime,
) -> Model:
    """The distilled student, in the transaction that finishes its job. `model_id` (`new_id("mdl")`) is the caller's,
    because the folder `storage_key(model_id)` is written first. `card`: recipe, data, metrics before and after."""
    source = storage_key(model_id)
    student = _row(kind="student", name=name, job_id=job_id, source=source, parameters=parameters, now=now)
    student.id, student.weights_sha256, student.card = model_id, weights_sha256, card
    return _added(session, student)


def create_tuned_teacher(
    session: Session, *, model_id: str, job_id: str, name: str, card: Mapping[str, Any], now: datetime
) -> Model:
    """The teacher that `job_id` tuned for itself before it taught; its folder is in the artifact store."""
    source = storage_key(model_id)
    teacher = _row(kind="teacher", name=f"{name} (teacher)", job_id=job_id, source=source, parameters=None, now=now)
    teacher.id, teacher.card = model_id, card
    return _added(session, teacher)


def get(session: Session, model_id: str) -> Model:
    """Raises NotFound."""
    return get_row(session, Model, model_id, what="model")


def as_shape(session: Session, model: Model, *, num_bytes: int | None = None) -> ModelOut:
    """`num_bytes`: of its files, where the caller looked."""
    columns = {name: getattr(model, name) for name in ModelOut.model_fields if hasattr(model, name)}
    teacher_id = session.scalar(select(Job.teacher_id).where(Job.id == model.job_id)) if model.job_id else None
    return ModelOut.model_validate({**columns, "teacher_id": teacher_id, "bytes": num_bytes})


def note_speed(session: Session, speeds: Mapping[str, float]) -> None:
    """How fast models answered just now, in tokens per second."""
    for model_id, tokens_per_s in speeds.items():
        _update(session, Model.id == model_id, tokens_per_s=tokens_per_s)


def rename(session: Session, *, model_id: str, name: str) -> Model:
    """Raises NotFound."""
    _update(session, Model.id == model_id, name=name)
    return get(session, model_id)


def delete(session: Session, model_id: str) -> Model:
    """Removes a student's row, or a teacher's that no job names; the files are the caller's to remove, afterwards.

    Raises NotFound, or Conflict with what to do first.
    """
    model = get(session, model_id)
    if model.kind == "untrained":
        raise Conflict(f"{model_id} is how {model.job_id} began, and goes with that job: delete the job")
    if (using := comparisons.uses_model(session, model_id)) is not None:
        raise Conflict(f"{model_id} is in use by {using}: wait for its end, or cancel it")
    if model.kind == "teacher":
        user = session.scalar(select(Job.id).where(Job.teacher_id == model_id).limit(1))
        if user is not None:
            raise Conflict(f"{model_id} is the teacher of {user} (and maybe more): delete those jobs first")
    mine = Job.student_id == model_id
    if (
        running := session.scalar(select(Job.id).where(mine, Job.status.in_(("queued", "running", "paused"))))
    ) is not None:
        raise Conflict(f"{running} is making {model_id} anew: cancel that job, or wait for its end")
    statement = update(Job).where(mine).values(student_id=None)
    session.execute(statement, execution_options={"synchronize_session": False})
    session.delete(model)
    session.flush()
    return model


def _update(session: Session, *conditions: ColumnElement[bool], **values: Any) -> None:
    statement = update(Model).where(*conditions).values(**values)
    session.execute(statement, execution_options={"synchronize_session": False})


def list_page(
    session: Session, *, kind: ModelKind | None, job_id: str | None, limit: int, after: str | None
) -> tuple[Sequence[Model], bool]:
    """Newest first, at most `limit`, continuing after the model `after`; the flag says whether more follow."""
    conditions = []
    if kind is not None:
        conditions.append(Model.kind == kind)
    if job_id is not None:
        conditions.append(Model.job_id == job_id)
    return newest_first(session, Model, *conditions, limit=limit, after=after)


def _row(
    *, kind: ModelKind, name: str, job_id: str | None, source: str, parameters: int | None, now: datetime
) -> Model:
    return Model(
        id=new_id("mdl"),
        kind=kind,
        name=name,
        job_id=job_id,
        source=source,
        parameters=parameters,
        card={},
        created_at=now,
    )


def _added(session: Session, model: Model) -> Model:
    session.add(model)
    session.flush()
    return model
