"""Readings of an answer by two models: asked for once per answer and pair, then kept.

Knows which comparison and whose answer. Does not know what a reading holds; a comparing worker writes it.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.core.compare_schemas import DivergenceIn
from app.core.db import comparisons
from app.core.db.rows import get_row
from app.core.db.tables import Comparison
from app.core.errors import Conflict, InvalidRequest, NotFound


def ask(session: Session, *, comparison_id: str, request: DivergenceIn, now: datetime) -> tuple[Comparison, bool]:
    """The reading, and whether it is new. One that failed or was stopped is asked for again.

    Conflict while the comparison runs or is blind; InvalidRequest when that model gave no answer.
    """
    comparison = comparisons.get(session, comparison_id)
    if comparison.status not in comparisons.TERMINAL or comparisons.is_hidden(comparison):
        raise Conflict(f"{comparison_id} has not ended or awaits its vote; its answers are read afterwards")
    if not comparison.token_ids.get(request.of):
        raise InvalidRequest(f"there is no answer of {request.of} in {comparison_id}", "of")
    wanted = request.model_dump(mode="json")
    earlier = select(Comparison).where(Comparison.parent_id == comparison_id, Comparison.origin == "divergence")
    for row in session.scalars(earlier):
        if row.request == wanted and row.status not in ("failed", "cancelled"):
            return row, False
    row = comparisons.new_row(origin="divergence", request=wanted, now=now)
    row.parent_id = comparison_id
    session.add(row)
    session.flush()
    return row, True


def get(session: Session, divergence_id: str) -> Comparison:
    """Raises NotFound."""
    row = get_row(session, Comparison, divergence_id, what="divergence")
    if row.origin != "divergence":
        raise NotFound(f"no divergence {divergence_id}")
    return row
