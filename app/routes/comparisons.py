"""/v1/comparisons: one prompt, several models. Knows HTTP; `core.db.comparisons` stores, a worker answers."""

from __future__ import annotations

from fastapi import APIRouter
from sqlalchemy.orm import Session

from app.core.db import comparisons, models
from app.core.errors import InvalidRequest, NotFound
from app.core.schemas import ComparisonIn, ComparisonOut
from app.deps import ServicesDep
from app.errors import problems

router = APIRouter(prefix="/v1/comparisons", tags=["comparisons"])


@router.post("", status_code=201, responses=problems(422))
def create_comparison(services: ServicesDep, request: ComparisonIn) -> ComparisonOut:
    """Ask up to four models the same thing, with the same seed and settings; read the answers by the id."""
    if request.messages[-1].role != "user":
        raise InvalidRequest("the last message must be the user's, for the models to answer", "messages")
    with services.sessions.begin() as session:
        _require_models(session, request)
        comparison = comparisons.as_shape(comparisons.create(session, request=request, now=services.clock()))
    services.doorbell.ring_comparison(comparison.id)
    return comparison


@router.get("/{comparison_id}", responses=problems(404, 422))
def read_comparison(services: ServicesDep, comparison_id: str) -> ComparisonOut:
    with services.sessions.begin() as session:
        return comparisons.as_shape(comparisons.get(session, comparison_id))


def _require_models(session: Session, request: ComparisonIn) -> None:
    for i, model_id in enumerate(request.model_ids):
        try:
            models.get(session, model_id)
        except NotFound as error:
            raise InvalidRequest(f"{error.message}; see GET /v1/models", f"model_ids.{i}") from error
