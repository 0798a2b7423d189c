"""The limit on bodies; counters are tested where they are read (routes/test_metrics.py)."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.testclient import TestClient

from app.errors import install_error_handlers
from app.middleware import BodyLimit


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
