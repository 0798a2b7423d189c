"""Events as pages and as a live stream that ends with the job."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi.testclient import TestClient

from app.core.db import events, jobs
from app.core.events import Event, PhaseProgress, Warned
from app.deps import Services
from app.main import create_app
from tests.waiting import until

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


@pytest.mark.parametrize("seed", range(3))
def test_a_client_that_drops_anywhere_sees_every_event_once(
    client: TestClient, services: Services, job_id: str, live_url: str, seed: int
) -> None:
    """Connections are cut after a random number of bytes, in the middle of messages too, while events arrive. As a
    browser does, the client forgets an unfinished message and reconnects with the id of the last whole one."""
    chance = random.Random(seed)
    start(services)

    def write() -> None:
        done = 0
        while done < 400:
            batch = [loading(done + i) for i in range(chance.randint(1, 30))]
            tell(services, job_id, batch)
            done += len(batch)
            time.sleep(chance.random() * 0.03)
        end(services, job_id)

    writer = threading.Thread(target=write)
    writer.start()
    got: list[tuple[int, dict[str, Any]]] = []
    drops = 0
    while not got or got[-1][1]["event"].get("status") != "succeeded":
        text, whole = read_until_cut(
            live_url, job_id, last_seen=got[-1][0] if got else None, cut=chance.randint(1, 9000)
        )
        got += messages(text[: text.rfind("\n\n") + 2])
        drops += not whole
    writer.join()
    with services.readers.begin() as session:
        stored, _ = events.page(session, job_id=job_id, after=0, limit=1000)
    assert [seq for seq, _ in got] == list(range(1, len(stored) + 1))
    assert [data["event"] for _, data in got] == [row.payload for row in stored]
    assert drops >= 5


def read_until_cut(live_url: str, job_id: str, *, last_seen: int | None, cut: int) -> tuple[str, bool]:
    """What arrives before the connection is closed after `cut` bytes; the flag says that the server ended it before."""
    headers = STREAM | ({} if last_seen is None else {"Last-Event-ID": str(last_seen)})
    received = b""
    with httpx.stream("GET", f"{live_url}/v1/jobs/{job_id}/events", headers=headers, timeout=30) as answer:
        for piece in answer.iter_raw():
            received += piece
            if len(received) >= cut:
                return received[:cut].decode(errors="ignore"), False
    return received.decode(), True


def test_clients_that_do_not_read_hold_nobody_up(
    client: TestClient, services: Services, job_id: str, live_url: str
) -> None:
    """Streams whose clients stopped reading, with far more to say than any buffer holds: the trainer goes on writing,
    others go on reading, and no connection to the database is held."""
    start(services)
    host, port = live_url.removeprefix("http://").split(":")
    stuck = [socket.create_connection((host, int(port))) for _ in range(30)]
    try:
        for connection in stuck:
            request = f"GET /v1/jobs/{job_id}/events HTTP/1.1\r\nHost: {host}\r\nAccept: text/event-stream\r\n\r\n"
            connection.sendall(request.encode())
        for i in range(8):
            tell(services, job_id, [Warned(code="long", message="x" * 50_000) for _ in range(10)])
            assert client.get(f"/v1/jobs/{job_id}/events", params={"after": 2 + 10 * i, "limit": 1}).status_code == 200
        until(lambda: services.engine.pool.checkedout() == 0)  # type: ignore[attr-defined]  # QueuePool
        end(services, job_id)
        with httpx.stream("GET", f"{live_url}/v1/jobs/{job_id}/events", headers=STREAM, timeout=30) as answer:
            assert len(messages("\n".join(answer.iter_lines()))) == 83
    finally:
        for connection in stuck:
            connection.close()


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
