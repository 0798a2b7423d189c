"""Queries on models: teachers (one row per source), untrained students and distilled students (one per job each).

Knows rows of the `models` table. Does not read weights; parameters and digests are what the caller found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.core.db.rows import get_row, newest_first
from app.core.db.tables import Model
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


def get(session: Session, model_id: str) -> Model:
    """Raises NotFound."""
    return get_row(session, Model, model_id, what="model")


def as_shape(model: Model) -> ModelOut:
    return ModelOut.model_validate(model, from_attributes=True)


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
