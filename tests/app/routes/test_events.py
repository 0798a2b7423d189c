"""Events as pages and as a live stream that ends with the job."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi.testclient import TestClient

from app.core.db import events, jobs
from app.core.events import Event, PhaseProgress
from app.deps import Services
from app.main import create_app

STREAM = {"Accept": "text/event-stream"}


def start(services: Services) -> None:
    with services.sessions.begin() as session:
        jobs.claim_next(session, worker="w", now=services.clock())


def tell(services: Services, job_id: str, told: Sequence[Event]) -> None:
    with services.sessions.begin() as session:
        events.append(session, job_id=job_id, attempt=1, events=told, now=services.clock())


def end(services: Services, job_id: str) -> None:
    with services.sessions.begin() as session:
        jobs.finish(session, job_id=job_id, attempt=1, status="succeeded", now=services.clock())


def loading(done: int) -> PhaseProgress:
    return PhaseProgress(phase="loading", done=done, total=9)


def messages(text: str) -> list[tuple[int, dict[str, Any]]]:
    """(id, data) of each message of a stream; comments are skipped."""
    found = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            found.append((int(fields["id"]), json.loads(fields["data"])))
    return found


def test_pages_follow_the_cursor(client: TestClient, services: Services, job_id: str) -> None:
    start(services)
    tell(services, job_id, [loading(i) for i in range(3)])
    page = client.get(f"/v1/jobs/{job_id}/events", params={"after": 1, "limit": 2}).json()
    assert [event["seq"] for event in page["data"]] == [2, 3]
    assert page["has_more"] is True
    assert page["data"][0]["event"] == {"kind": "status", "status": "running", "code": None, "message": None}
    page = client.get(f"/v1/jobs/{job_id}/events", params={"after": 3}).json()
    assert ([event["seq"] for event in page["data"]], page["has_more"]) == ([4, 5], False)


def test_a_stream_ends_after_the_last_status(client: TestClient, services: Services, job_id: str) -> None:
    start(services)
    tell(services, job_id, [loading(i) for i in range(250)])  # more than one batch
    end(services, job_id)
    answer = client.get(f"/v1/jobs/{job_id}/events", headers=STREAM)
    assert answer.headers["content-type"].startswith("text/event-stream")
    got = messages(answer.text)
    assert [seq for seq, _ in got] == list(range(1, 254))
    assert [data["seq"] for _, data in got] == list(range(1, 254))
    assert got[-1][1]["event"]["status"] == "succeeded"


@pytest.mark.parametrize("how", ["after", "Last-Event-ID"])
def test_a_stream_resumes_where_it_broke_off(client: TestClient, services: Services, job_id: str, how: str) -> None:
    start(services)
    end(services, job_id)
    params = {"after": 2} if how == "after" else {"after": 0}
    headers = STREAM | ({} if how == "after" else {"Last-Event-ID": "2"})
    answer = client.get(f"/v1/jobs/{job_id}/events", headers=headers, params=params)
    assert [seq for seq, _ in messages(answer.text)] == [3]


def test_a_live_stream_brings_events_as_they_happen(
    client: TestClient, services: Services, job_id: str, live_url: str
) -> None:
    """Over a real socket: the test client would hand over the whole answer at once."""
    start(services)
    seen: list[tuple[float, str]] = []
    arrived = threading.Condition()

    def listen() -> None:
        with httpx.stream("GET", f"{live_url}/v1/jobs/{job_id}/events", headers=STREAM, timeout=20) as answer:
            for line in answer.iter_lines():
                with arrived:
                    seen.append((time.monotonic(), line))
                    arrived.notify_all()

    listener = threading.Thread(target=listen)
    listener.start()

    def wait_for(text: str) -> float:
        with arrived:
            assert arrived.wait_for(lambda: any(text in line for _, line in seen), timeout=10), seen
            return next(at for at, line in seen if text in line)

    wait_for('"status":"running"')
    told_at = time.monotonic()
    tell(services, job_id, [loading(5)])
    assert wait_for('"done":5') - told_at < 1.0
    with arrived:  # nothing happens for a while: comments keep proxies from closing the connection
        pings = sum(line.startswith(": ping") for _, line in seen)
        assert arrived.wait_for(lambda: sum(line.startswith(": ping") for _, line in seen) > pings, timeout=10)
    end(services, job_id)
    listener.join(timeout=10)
    assert not listener.is_alive()


def test_waiting_streams_hold_no_connection(client: TestClient, services: Services, job_id: str, live_url: str) -> None:
    """More streams than the pool has connections, and the API still answers."""
    pool_size = services.engine.pool.size() + 10  # type: ignore[attr-defined]  # QueuePool, with its overflow
    start(services)
    limits = httpx.Limits(max_connections=None)
    with httpx.Client(base_url=live_url, timeout=20, limits=limits) as http:
        streams = [
            http.send(http.build_request("GET", f"/v1/jobs/{job_id}/events", headers=STREAM), stream=True)
            for _ in range(pool_size + 5)
        ]
        assert http.get(f"/v1/jobs/{job_id}").status_code == 200
        end(services, job_id)
        for stream in streams:
            assert "succeeded" in stream.read().decode()


def test_bad_cursors_are_422(client: TestClient, job_id: str) -> None:
    path = f"/v1/jobs/{job_id}/events"
    for params, headers in (
        ({"after": -1}, {}),
        ({"after": 2**31}, {}),
        ({}, {"Last-Event-ID": "x"}),
        ({"limit": 0}, {}),
    ):
        assert client.get(path, params=params, headers=headers).status_code == 422


def test_a_stream_of_an_unknown_job_is_404(client: TestClient) -> None:
    assert client.get("/v1/jobs/job_none/events", headers=STREAM).status_code == 404


@pytest.fixture
def live_url(services: Services) -> Iterator[str]:
    """The API on a real socket."""
    config = uvicorn.Config(create_app(services=services), port=0, log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()
