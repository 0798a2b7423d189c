"""Rows of comparisons as the API shows them, and what a blind one must not show before its vote.

Knows shapes and which of an answer's numbers tell models apart. Does not know queries.
"""

from __future__ import annotations

from typing import cast

from app.core.compare_schemas import (
    Answer,
    Choice,
    ComparisonIn,
    ComparisonLine,
    ComparisonOut,
    ComparisonStatus,
    DivergenceIn,
    DivergenceOut,
)
from app.core.db.comparisons import is_hidden
from app.core.db.tables import Comparison
from app.core.schemas import JobError

LABELS = ("A", "B")
_PROMPT_SHOWN = 200


def as_shape(comparison: Comparison) -> ComparisonOut:
    """A blind one is masked until its vote, for every caller: who is A is in the database alone."""
    shape = ComparisonOut(
        id=comparison.id,
        status=cast(ComparisonStatus, comparison.status),
        request=ComparisonIn.model_validate(comparison.request),
        answers=[Answer.model_validate(answer) for answer in comparison.answers],
        error=error_of(comparison),
        created_at=comparison.created_at,
        finished_at=comparison.finished_at,
        history=comparison.history,
        hidden=is_hidden(comparison),
        vote=cast(Choice | None, comparison.vote),
    )
    return _masked(shape) if shape.hidden else shape


def _masked(shape: ComparisonOut) -> ComparisonOut:
    """Without an error: whatever has one failed, and is not hidden any more."""
    label = dict(zip(shape.request.model_ids, LABELS, strict=True))
    secret = ("seconds", "tokens_per_s", "parameters", "weights_sha256", "first_token_s", "template", "prompt_tokens")
    answers = [
        answer.model_copy(update={"model_id": label[answer.model_id], **dict.fromkeys(secret)})
        for answer in shape.answers
    ]
    return shape.model_copy(
        update={
            "request": shape.request.model_copy(update={"model_ids": list(LABELS)}),
            "answers": answers,
            "history": {},
        }
    )


def as_line(comparison: Comparison) -> ComparisonLine:
    model_ids = list(LABELS) if is_hidden(comparison) else comparison.request["model_ids"]
    return ComparisonLine(
        id=comparison.id,
        status=cast(ComparisonStatus, comparison.status),
        prompt=comparison.request["messages"][-1]["content"][:_PROMPT_SHOWN],
        model_ids=model_ids,
        blind=comparison.request.get("blind", False),
        vote=cast(Choice | None, comparison.vote),
        created_at=comparison.created_at,
    )


def as_divergence(row: Comparison) -> DivergenceOut:
    return DivergenceOut.model_validate(
        {
            "id": row.id,
            "comparison_id": row.parent_id,
            "request": DivergenceIn.model_validate(row.request),
            "status": row.status,
            "result": row.result or None,
            "error": error_of(row),
        }
    )


def error_of(row: Comparison) -> JobError | None:
    return JobError(code=row.error_code, message=row.error_message or "") if row.error_code else None
