"""/v1/jobs/{id}/events: what a run says about itself, as pages or as a live stream.

Knows cursors and server-sent events. Does not know what an event means.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event

from app.core.db import events, jobs
from app.core.schemas import EventOut, Page
from app.deps import LimitQuery, Services, ServicesDep
from app.errors import problems
from app.event_tail import Chunk, EventTail

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
_STREAM = "text/event-stream"
_BATCH = 200
_LARGEST_SEQ = 2**31 - 1
_ANSWER = {"description": f"A page, or with `Accept: {_STREAM}` the live stream.", "content": {_STREAM: {}}}


@router.get("/{job_id}/events", response_model=Page[EventOut], responses={200: _ANSWER, **problems(404, 422)})
def read_events(
    services: ServicesDep,
    request: Request,
    job_id: str,
    after: Annotated[int, Query(ge=0, le=_LARGEST_SEQ, description="Events with a larger seq.")] = 0,
    limit: LimitQuery = 1000,
    last_event_id: Annotated[int | None, Header(ge=0, le=_LARGEST_SEQ, description="Sent on reconnecting.")] = None,
) -> Response | Page[EventOut]:
    """Oldest first. A stream carries each event's seq as its id and ends after the job's last status."""
    if _STREAM in request.headers.get("accept", ""):
        _read(services, job_id, after=0, limit=1)  # an unknown job is a 404, not an empty stream
        start = after if last_event_id is None else last_event_id
        return StreamingResponse(
            _stream(request.app.state.event_tail, job_id, after=start, ping_s=services.stream_ping_s),
            media_type=_STREAM,
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},  # proxies must not hold events back
        )
    page, _ = _read(services, job_id, after=after, limit=limit)
    return page


def make_event_tail(services: Services) -> EventTail:
    """What all streams of an application share."""

    def read(job_id: str, seq: int) -> Chunk:
        page, has_ended = _read(services, job_id, after=seq, limit=_BATCH)
        messages = [format_sse_event(data_str=event.model_dump_json(), id=str(event.seq)) for event in page.data]
        return Chunk(
            body=b"".join(messages),
            last_seq=page.data[-1].seq if page.data else seq,
            is_end=has_ended and not page.has_more,
        )

    return EventTail(read, poll_s=services.stream_poll_s)


async def _stream(tail: EventTail, job_id: str, *, after: int, ping_s: float) -> AsyncIterator[bytes]:
    yield KEEPALIVE_COMMENT
    while True:
        try:
            async with asyncio.timeout(ping_s):
                chunk = await tail.after(job_id, after)
        except TimeoutError:
            yield KEEPALIVE_COMMENT
            continue
        if chunk.body:
            yield chunk.body
        if chunk.is_end:
            return
        after = chunk.last_seq


def _read(services: Services, job_id: str, *, after: int, limit: int) -> tuple[Page[EventOut], bool]:
    """A page, and whether the job had ended when it was read: both in one transaction, and the last status event is
    written with the status, so an ended job's last page has it."""
    with services.readers.begin() as session:
        job = jobs.get(session, job_id)
        rows, has_more = events.page(session, job_id=job_id, after=after, limit=limit)
        page = Page[EventOut](data=[events.as_shape(row) for row in rows], has_more=has_more)
        return page, job.status in jobs.TERMINAL
