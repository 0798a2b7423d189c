"""/v1/votes: what blind votes say about pairs of models. Knows HTTP; POST /v1/comparisons/{id}/vote votes."""

from __future__ import annotations

from fastapi import APIRouter

from app.core.compare_schemas import VotesOut
from app.core.db import votes
from app.deps import ServicesDep

router = APIRouter(prefix="/v1/votes", tags=["comparisons"])


@router.get("/summary")
def read_summary(services: ServicesDep) -> VotesOut:
    """Every pair that was voted on, with its win rate and the rate's 95 % interval."""
    with services.sessions.begin() as session:
        return VotesOut(data=votes.summary(session))
