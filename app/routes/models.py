"""/v1/models: teachers and students. Knows HTTP; `core.db.models` knows rows."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from app.core.db import models
from app.core.schemas import ModelOut, Page
from app.deps import AfterQuery, LimitQuery, ServicesDep
from app.errors import problems

router = APIRouter(prefix="/v1/models", tags=["models"])


@router.get("", responses=problems(422))
def list_models(
    services: ServicesDep,
    kind: Annotated[models.ModelKind | None, Query(description="Only models of this kind.")] = None,
    job_id: Annotated[str | None, Query(max_length=64, description="Only the models that this job made.")] = None,
    limit: LimitQuery = 100,
    after: AfterQuery = None,
) -> Page[ModelOut]:
    """Newest first: teachers, students before training, and distilled students."""
    with services.sessions.begin() as session:
        rows, has_more = models.list_page(session, kind=kind, job_id=job_id, limit=limit, after=after)
        return Page(data=[models.as_shape(row) for row in rows], has_more=has_more)


@router.get("/{model_id}", responses=problems(404, 422))
def read_model(services: ServicesDep, model_id: str) -> ModelOut:
    with services.sessions.begin() as session:
        return models.as_shape(models.get(session, model_id))
