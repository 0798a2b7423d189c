"""/v1/chat/completions: any model here for any OpenAI client. Knows HTTP and OpenAI's shapes (`app/chat_shapes`).

A completion is a comparison of one model: claimed, written and stopped like every other. Does not know how it is run.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from http import HTTPStatus
from typing import Any

from anyio import CancelScope
from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.routing import APIRoute
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from starlette.exceptions import HTTPException

from app import askable
from app.chat_shapes import FINISH, ChatIn, ChatOut, ErrorBody, ErrorOut, ReplyChoice, ReplyMessage, chunk, usage_of
from app.core.compare_schemas import ComparisonIn, ComparisonOut
from app.core.db import comparison_view, comparisons
from app.core.errors import Conflict, NotFound, StillhouseError
from app.deps import Services, ServicesDep
from app.errors import as_problem, validated
from app.live import changes

_STREAM = "text/event-stream"
_LOOK_S = 0.1  # between looks at what is written; the time to the first token is not much longer than the model's
_PATIENCE_S = 900.0  # after so long nobody is answering: no worker runs, or it has hours of work
_FAILURES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorOut, "description": HTTPStatus(status).phrase} for status in (404, 422, 500, 504)
}


class OpenAiRoute(APIRoute):
    """A route whose errors have OpenAI's shape instead of problem+json."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                return await answer(request)
            except (StillhouseError, RequestValidationError, HTTPException) as error:
                return _error(request, error)

        return handler


router = APIRouter(prefix="/v1/chat", tags=["chat"], route_class=OpenAiRoute)


@router.post(
    "/completions",
    response_model=ChatOut,
    responses={200: {"description": "The answer, or with `stream` its pieces.", "content": {_STREAM: {}}}, **_FAILURES},
)
async def complete(services: ServicesDep, request: Request, body: ChatIn) -> Response | ChatOut:
    """OpenAI-compatible; `model` is a model's id, or a job's checkpoint's. A client that hangs up stops the answer."""
    comparison_id = await run_in_threadpool(_ask, services, body)
    follow = _follow(services, comparison_id)
    if body.stream:
        return StreamingResponse(
            _pieces(services, follow, body, comparison_id),
            media_type=_STREAM,
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )
    async for shape in follow:
        if await request.is_disconnected():
            await run_in_threadpool(_cancel, services, comparison_id)
            return Response(status_code=499)  # nobody reads it
        if shape is not None and shape.status in comparisons.TERMINAL:
            return _whole(shape)
    await run_in_threadpool(_cancel, services, comparison_id)
    raise HTTPException(HTTPStatus.GATEWAY_TIMEOUT, "no worker has answered; is a comparing worker running?")


def _ask(services: Services, body: ChatIn) -> str:
    """The id of the queued comparison."""
    asked = validated(ComparisonIn, body.as_comparison())
    askable.require_one(services, body.model)
    with services.sessions.begin() as session:
        comparison_id = comparisons.create(session, request=asked, now=services.clock(), origin="chat").id
    services.doorbell.ring_comparison(comparison_id)
    return comparison_id


async def _follow(services: Services, comparison_id: str) -> AsyncIterator[ComparisonOut | None]:
    """Every change until the end, None every second in between; ends early after `_PATIENCE_S`."""

    def now() -> ComparisonOut:
        with services.sessions.begin() as session:
            return comparison_view.as_shape(comparisons.get(session, comparison_id))

    deadline = asyncio.get_running_loop().time() + _PATIENCE_S
    poll_s = min(_LOOK_S, services.stream_poll_s)
    async for shape in changes(
        now, poll_s=poll_s, has_ended=lambda found: found.status in comparisons.TERMINAL, ping_s=1.0
    ):
        yield shape
        if asyncio.get_running_loop().time() > deadline:
            return


async def _pieces(
    services: Services, follow: AsyncIterator[ComparisonOut | None], body: ChatIn, comparison_id: str
) -> AsyncIterator[bytes]:
    """The answer as chunks. When the client is gone Starlette closes this generator, and the answer is stopped."""
    sent, has_ended, head = "", False, _head(comparison_id, body)
    try:
        yield _event(chunk(head, {"role": "assistant", "content": ""}))
        async for shape in follow:
            text = shape.answers[0].text if shape is not None and shape.answers else sent
            if text.startswith(sent) and text != sent:
                yield _event(chunk(head, {"content": text[len(sent) :]}))
                sent = text
            elif shape is None:
                yield KEEPALIVE_COMMENT
            if shape is not None and shape.status in comparisons.TERMINAL:
                has_ended = True
                for event in _last(head, shape, include_usage=body.wants_usage):
                    yield event
    finally:
        if not has_ended:
            with CancelScope(shield=True):  # the request's own tasks are being cancelled
                await run_in_threadpool(_cancel, services, comparison_id)


def _last(head: dict[str, Any], shape: ComparisonOut, *, include_usage: bool) -> list[bytes]:
    done = format_sse_event(data_str="[DONE]")
    if shape.status == "failed":
        assert shape.error is not None
        error = ErrorBody(message=shape.error.message, type="server_error", param=None, code=shape.error.code)
        return [_event(ErrorOut(error=error).model_dump()), done]
    events = [_event(chunk(head, {}, finish=FINISH[shape.answers[0].finish] if shape.answers else "stop"))]
    if include_usage and shape.answers:
        events.append(_event({**head, "choices": [], "usage": usage_of(shape.answers[0]).model_dump()}))
    return [*events, done]


def _whole(shape: ComparisonOut) -> Response | ChatOut:
    if shape.status == "failed":
        assert shape.error is not None
        status = 422 if shape.error.code in ("context_too_short", "no_chat_template") else 500
        error = ErrorBody(message=shape.error.message, type=_kind(status), param=None, code=shape.error.code)
        return JSONResponse(ErrorOut(error=error).model_dump(), status)
    if not shape.answers:
        raise Conflict("the answer was cancelled before its first token")
    answer = shape.answers[0]
    finish = "length" if answer.finish == "length" else "stop"
    return ChatOut(
        id=shape.id,
        created=int(shape.created_at.timestamp()),
        model=answer.model_id,
        choices=[ReplyChoice(message=ReplyMessage(content=answer.text), finish_reason=finish)],
        usage=usage_of(answer),
        system_fingerprint=answer.weights_sha256,
    )


def _head(comparison_id: str, body: ChatIn) -> dict[str, Any]:
    return {"id": comparison_id, "object": "chat.completion.chunk", "created": int(time.time()), "model": body.model}


def _event(document: dict[str, Any]) -> bytes:
    return format_sse_event(data_str=json.dumps(document))


def _cancel(services: Services, comparison_id: str) -> None:
    try:
        with services.sessions.begin() as session:
            comparisons.request_cancel(session, comparison_id=comparison_id, now=services.clock())
    except (Conflict, NotFound):
        pass  # it has ended by itself meanwhile


def _error(request: Request, error: Exception) -> JSONResponse:
    answer = as_problem(request, error)
    problem = json.loads(bytes(answer.body))
    first = (problem.get("errors") or [{}])[0]
    param = ".".join(map(str, first.get("loc", ()))) or None
    body = ErrorBody(message=problem["detail"], type=_kind(answer.status_code), param=param, code=problem["code"])
    return JSONResponse(ErrorOut(error=body).model_dump(), answer.status_code)


def _kind(status: int) -> str:
    return "invalid_request_error" if status < 500 else "server_error"
