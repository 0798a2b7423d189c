"""What happens around every request: a limit on the body, and counters for Prometheus.

Knows ASGI. Does not know what any route does. Starlette's BaseHTTPMiddleware would be shorter, but it cannot watch a
body arrive in pieces.
"""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import PayloadTooLarge

_UPLOADS = "/v1/datasets"
_JSON_LIMIT_BYTES = 4 * 2**20


class BodyLimit:
    """Ends a request whose body grows past the limit, before it is stored anywhere: uploads may be
    `max_upload_bytes` long, everything else is a JSON document."""

    def __init__(self, app: ASGIApp, *, max_upload_bytes: int) -> None:
        self._app = app
        self._max_upload_bytes = max_upload_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_upload = scope["path"].rstrip("/") == _UPLOADS
        limit = self._max_upload_bytes if is_upload else min(_JSON_LIMIT_BYTES, self._max_upload_bytes)
        seen = 0

        async def limited() -> Message:
            nonlocal seen
            message = await receive()
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if seen > limit:
                    raise PayloadTooLarge(limit)
            return message

        await self._app(scope, limited, send)


class RequestMetrics:
    """Counts requests and times them until their answer starts, by method and route template (never by raw path,
    which would make a series per id)."""

    def __init__(self, app: ASGIApp, *, registry: CollectorRegistry) -> None:
        self._app = app
        self._requests = Counter(
            "stillhouse_http_requests", "Requests answered.", ["method", "route", "status"], registry=registry
        )
        self._latency = Histogram(
            "stillhouse_http_request_seconds", "Time until the answer starts.", ["method", "route"], registry=registry
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, has_answered = time.perf_counter(), False

        def count(status: int) -> None:
            route = getattr(scope.get("route"), "path", "unmatched")
            self._requests.labels(scope["method"], route, status).inc()
            self._latency.labels(scope["method"], route).observe(time.perf_counter() - started)

        async def counted(message: Message) -> None:
            nonlocal has_answered
            if message["type"] == "http.response.start":
                has_answered = True
                count(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, counted)
        except Exception:
            if not has_answered:  # Starlette answers 500 outside of every middleware
                count(500)
            raise
