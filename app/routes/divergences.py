"""/v1/divergences: readings of an answer by two models. Knows HTTP; POST /v1/comparisons/{id}/divergence asks."""

from __future__ import annotations

from fastapi import APIRouter

from app.core.compare_schemas import DivergenceOut
from app.core.db import comparison_view, divergences
from app.deps import ServicesDep
from app.errors import problems

router = APIRouter(prefix="/v1/divergences", tags=["comparisons"])


@router.get("/{divergence_id}", responses=problems(404, 422))
def read_divergence(services: ServicesDep, divergence_id: str) -> DivergenceOut:
    with services.sessions.begin() as session:
        return comparison_view.as_divergence(divergences.get(session, divergence_id))
