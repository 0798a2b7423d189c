"""/v1/batches: a data set asked row by row. Knows HTTP; `core.db.batches` stores, `batch_files` knows files."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse
from sqlalchemy.orm import Session

from app import askable, batch_files
from app.core.compare_schemas import BatchIn, BatchOut, BatchRow
from app.core.db import batches, datasets
from app.core.errors import InvalidRequest, NotFound
from app.core.schemas import Page
from app.deps import AfterQuery, LimitQuery, ServicesDep
from app.errors import problems

router = APIRouter(prefix="/v1/batches", tags=["batches"])
SortQuery = Annotated[
    Literal["row", "kl", "rouge_l"],
    Query(
        description="row: the data's order; kl: the student farthest from its teacher first; rouge_l: the student's "
        "worst ROUGE-L first."
    ),
]
FormatQuery = Annotated[Literal["csv", "jsonl"], Query(description="csv: one line per answer; jsonl: one per row.")]
_FILE: dict[int | str, dict[str, Any]] = {
    200: {"description": "The file.", "content": {kind: {} for kind in batch_files.MEDIA_TYPES.values()}}
}


@router.post("", status_code=201, responses=problems(404, 422))
def create_batch(services: ServicesDep, request: BatchIn) -> BatchOut:
    """Asks the models every row of a data set. Rows wait behind comparisons and chats, and go on after a restart."""
    if request.judge and not services.has_judge:
        raise InvalidRequest("this service has no judge; set STILLHOUSE_JUDGE_URL for its comparing worker", "judge")
    if request.judge and len(request.model_ids) < 2:
        raise InvalidRequest("a judge compares the first model with the others; name two", "model_ids")
    if len(set(request.model_ids)) != len(request.model_ids):
        raise InvalidRequest("a model appears twice", "model_ids")
    askable.require(services, request.model_ids)
    with services.sessions.begin() as session:
        _require_dataset(session, request)
    rows = batch_files.read_rows(services.store, datasets.storage_key(request.dataset_id), limit=request.limit)
    with services.sessions.begin() as session:
        batch, first = batches.create(session, request=request, rows=rows, now=services.clock())
        shape = batches.as_shape(session, batch)
    services.doorbell.ring_comparison(first)
    return shape


@router.get("", responses=problems(422))
def list_batches(services: ServicesDep, limit: LimitQuery = 50, after: AfterQuery = None) -> Page[BatchOut]:
    """Newest first."""
    with services.readers.begin() as session:
        rows, has_more = batches.list_page(session, limit=limit, after=after)
        return Page(data=[batches.as_shape(session, row) for row in rows], has_more=has_more)


@router.get("/{batch_id}", responses=problems(404, 422))
def read_batch(services: ServicesDep, batch_id: str) -> BatchOut:
    with services.readers.begin() as session:
        return batches.as_shape(session, batches.get(session, batch_id))


@router.get("/{batch_id}/rows", responses=problems(404, 422))
def read_rows(
    services: ServicesDep,
    batch_id: str,
    sort: SortQuery = "row",
    offset: Annotated[int, Query(ge=0, description="Rows to skip.")] = 0,
    limit: LimitQuery = 100,
) -> Page[BatchRow]:
    """Answers and scores by row; those not answered yet come last when sorted by a score."""
    with services.readers.begin() as session:
        batches.get(session, batch_id)
        rows = batch_files.ordered(batches.rows(session, batch_id), sort)
    return Page(data=rows[offset : offset + limit], has_more=len(rows) > offset + limit)


@router.post("/{batch_id}/cancel", responses=problems(404, 409, 422))
def cancel_batch(services: ServicesDep, batch_id: str) -> BatchOut:
    """What is answered stays; the row that runs stops as a comparison does."""
    with services.sessions.begin() as session:
        batch = batches.cancel(session, batch_id=batch_id, now=services.clock())
        return batches.as_shape(session, batch)


@router.get("/{batch_id}/export", response_class=StreamingResponse, responses=_FILE | problems(404, 422))
def export_batch(services: ServicesDep, batch_id: str, format: FormatQuery = "jsonl") -> StreamingResponse:
    """All rows, as they stand, in the data's order."""
    with services.readers.begin() as session:
        batches.get(session, batch_id)
        rows = batches.rows(session, batch_id)
    lines = batch_files.as_csv(rows) if format == "csv" else batch_files.as_jsonl(rows)
    headers = {"Content-Disposition": f'attachment; filename="{batch_id}.{format}"'}
    return StreamingResponse(lines, media_type=batch_files.MEDIA_TYPES[format], headers=headers)


def _require_dataset(session: Session, request: BatchIn) -> None:
    try:
        datasets.get(session, request.dataset_id)
    except NotFound as error:
        raise InvalidRequest(f"{error.message}; see GET /v1/datasets", "dataset_id") from error
