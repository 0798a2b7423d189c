"""The limit on bodies, and the counters (what is counted by route is tested in routes/test_metrics.py)."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry

from app.errors import install_error_handlers
from app.middleware import BodyLimit, RequestMetrics


def make_client(max_upload_bytes: int) -> TestClient:
    app = FastAPI()
    install_error_handlers(app)

    @app.post("/v1/datasets")
    @app.post("/v1/jobs")
    async def size(request: Request) -> int:
        return len(await request.body())

    app.add_middleware(BodyLimit, max_upload_bytes=max_upload_bytes)
    return TestClient(app)


def test_exactly_the_limit_is_allowed() -> None:
    client = make_client(1000)
    assert client.post("/v1/datasets", content=b"x" * 1000).json() == 1000
    assert client.post("/v1/datasets", content=b"x" * 1001).status_code == 413


def test_only_uploads_may_be_large() -> None:
    client = make_client(64 * 2**20)
    large = b"x" * (5 * 2**20)
    assert client.post("/v1/datasets", content=large).json() == len(large)
    answer = client.post("/v1/jobs", content=large)
    assert (answer.status_code, answer.headers["content-type"]) == (413, "application/problem+json")


def test_unexpected_errors_are_counted_too() -> None:
    app, registry = FastAPI(), CollectorRegistry()
    install_error_handlers(app)

    @app.get("/broken")
    def broken() -> None:
        raise ZeroDivisionError

    app.add_middleware(RequestMetrics, registry=registry)
    assert TestClient(app, raise_server_exceptions=False).get("/broken").status_code == 500
    labels = {"method": "GET", "route": "/broken", "status": "500"}
    assert registry.get_sample_value("stillhouse_http_requests_total", labels) == 1
