"""/v1/comparisons: one prompt, several models, and what can be asked about their answers.

Knows HTTP and server-sent events; `core.db.comparisons` stores, a worker answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event

from app import askable
from app.core.compare_schemas import ComparisonIn, ComparisonLine, ComparisonOut, DivergenceIn, DivergenceOut, VoteIn
from app.core.db import comparison_view, comparisons, divergences, votes
from app.core.errors import InvalidRequest
from app.core.schemas import Page
from app.deps import AfterQuery, LimitQuery, Services, ServicesDep
from app.errors import problems
from app.live import changes

router = APIRouter(prefix="/v1/comparisons", tags=["comparisons"])
_STREAM = "text/event-stream"
_ANSWER = {
    "description": f"As it stands, or with `Accept: {_STREAM}` every change until the end.",
    "content": {_STREAM: {}},
}


@router.post("", status_code=201, responses=problems(404, 409, 422))
def create_comparison(services: ServicesDep, request: ComparisonIn) -> ComparisonOut:
    """Ask up to four models the same thing, with the same seed and settings; read the answers by the id, also while
    they are written."""
    _check(request)
    askable.require(services, request.model_ids)
    with services.sessions.begin() as session:
        comparison = comparisons.create(session, request=request, now=services.clock())
        shape = comparison_view.as_shape(comparison)
    services.doorbell.ring_comparison(shape.id)
    return shape


@router.get("", responses=problems(422))
def list_comparisons(services: ServicesDep, limit: LimitQuery = 50, after: AfterQuery = None) -> Page[ComparisonLine]:
    """What was asked, newest first; without chat completions and the rows of batches."""
    with services.readers.begin() as session:
        rows, has_more = comparisons.list_page(session, limit=limit, after=after)
        return Page(data=[comparison_view.as_line(row) for row in rows], has_more=has_more)


@router.get("/{comparison_id}", response_model=ComparisonOut, responses={200: _ANSWER, **problems(404, 422)})
def read_comparison(services: ServicesDep, request: Request, comparison_id: str) -> Response | ComparisonOut:
    """The answers as far as they are written. A blind comparison calls its models A and B until the vote."""
    shape = read(services, comparison_id)
    if _STREAM not in request.headers.get("accept", ""):
        return shape
    return StreamingResponse(
        _stream(services, comparison_id),
        media_type=_STREAM,
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},  # proxies must not hold events back
    )


@router.post("/{comparison_id}/cancel", responses=problems(404, 409, 422))
def cancel_comparison(services: ServicesDep, comparison_id: str) -> ComparisonOut:
    """A waiting one is cancelled at once; a running one stops within about a twentieth of a second (or
    when the token being written is there) and keeps what is written."""
    with services.sessions.begin() as session:
        row = comparisons.request_cancel(session, comparison_id=comparison_id, now=services.clock())
        return comparison_view.as_shape(row)


@router.post("/{comparison_id}/vote", responses=problems(404, 409, 422))
def vote(services: ServicesDep, comparison_id: str, body: VoteIn) -> ComparisonOut:
    """One vote on a blind comparison that is answered; the answer tells who was who."""
    with services.sessions.begin() as session:
        row = votes.cast_vote(session, comparison_id=comparison_id, choice=body.choice, now=services.clock())
        return comparison_view.as_shape(row)


@router.post("/{comparison_id}/divergence", responses=problems(404, 409, 422))
def ask_divergence(services: ServicesDep, comparison_id: str, request: DivergenceIn) -> DivergenceOut:
    """Where two models part on one answer, token by token: asked for once, then kept. Repeat the request, or read
    /v1/divergences/{id}, until it has ended."""
    askable.require(services, [request.teacher_id], field="teacher_id")
    askable.require(services, [request.student_id], field="student_id")
    with services.sessions.begin() as session:
        row, is_new = divergences.ask(session, comparison_id=comparison_id, request=request, now=services.clock())
        shape = comparison_view.as_divergence(row)
    if is_new:
        services.doorbell.ring_comparison(shape.id)
    return shape


def read(services: Services, comparison_id: str) -> ComparisonOut:
    with services.readers.begin() as session:
        return comparison_view.as_shape(comparisons.get(session, comparison_id))


async def _stream(services: Services, comparison_id: str) -> AsyncIterator[bytes]:
    def now() -> ComparisonOut:
        return read(services, comparison_id)

    def has_ended(shape: ComparisonOut) -> bool:
        return shape.status in comparisons.TERMINAL

    async for shape in changes(now, poll_s=services.stream_poll_s, has_ended=has_ended, ping_s=services.stream_ping_s):
        yield format_sse_event(data_str=shape.model_dump_json()) if shape else KEEPALIVE_COMMENT


def _check(request: ComparisonIn) -> None:
    if request.messages[-1].role != "user":
        raise InvalidRequest("the last message must be the user's, for the models to answer", "messages")
    if request.previous_id and any(message.role == "system" for message in request.messages):
        raise InvalidRequest("the system prompt is the first turn's; a later turn has none", "messages")
    if request.blind and len(set(request.model_ids)) != 2:
        raise InvalidRequest("a blind comparison is between two different models", "model_ids")
    if request.blind and request.previous_id:
        raise InvalidRequest("a blind comparison starts anew: earlier turns tell who is who", "blind")
