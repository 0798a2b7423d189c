"""OpenAI's shape over HTTP: whole answers, streams, usage and errors, with a stand-in only for the GPU worker's hand:
a thread claims and writes through the same database functions. The real worker is in tests/e2e."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.core.compare_schemas import Answer
from app.core.db import comparisons
from app.deps import Services
from tests.waiting import until


@pytest.fixture
def body(client: TestClient, job_id: str) -> dict[str, Any]:
    model = client.get(f"/v1/jobs/{job_id}").json()["teacher_id"]
    return {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "temperature": 0}


def said(model_id: str, text: str, finish: Any = None) -> Answer:
    return Answer(
        model_id=model_id,
        text=text,
        tokens=len(text),
        seconds=1.0,
        tokens_per_s=1.0,
        finished=finish == "stop",
        parameters=1,
        weights_sha256="ab",
        finish=finish,
        prompt_tokens=4,
    )


@contextmanager
def answering(services: Services, texts: list[str], *, finish: str = "stop", code: str | None = None) -> Iterator[None]:
    """Claims the next completion and writes `texts`, one after the other, each once the last was stored."""

    def work() -> None:
        claims: list[comparisons.ComparisonClaim] = []

        def claim() -> bool:
            with services.sessions.begin() as session:
                found = comparisons.claim_next(session, worker="w", now=services.clock())
            claims.extend([found] if found else [])
            return bool(claims)

        until(claim)
        (claimed,) = claims
        which: dict[str, Any] = {"comparison_id": claimed.comparison_id, "attempt": claimed.attempt}
        model_id = claimed.request["model_ids"][0]
        for text in texts[:-1]:
            with services.sessions.begin() as session:
                comparisons.progress(session, **which, now=services.clock(), answers=[said(model_id, text)])
            threading.Event().wait(0.2)  # longer than the route's look, so that it sees each
        with services.sessions.begin() as session:
            answers = None if code else [said(model_id, texts[-1], finish)]
            comparisons.finish(session, **which, now=services.clock(), answers=answers, code=code, message="why")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def test_a_whole_answer(client: TestClient, services: Services, body: dict[str, Any]) -> None:
    with answering(services, ["Hello"], finish="length"):
        answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    found = answer.json()
    assert (found["object"], found["model"]) == ("chat.completion", body["model"])
    assert found["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello"},
            "finish_reason": "length",
            "logprobs": None,
        }
    ]
    assert found["usage"] == {"prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9}
    assert found["system_fingerprint"] == "ab"


def test_a_stream_joins_to_the_answer(client: TestClient, services: Services, body: dict[str, Any]) -> None:
    asked = body | {"stream": True, "stream_options": {"include_usage": True}}
    with (
        answering(services, ["He", "Hell", "Hello 🦙"]),
        client.stream("POST", "/v1/chat/completions", json=asked) as got,
    ):
        lines = [line.removeprefix("data: ") for line in got.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"]]
    assert "".join(deltas) == "Hello 🦙"
    assert [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]][-1] == "stop"
    assert chunks[-1]["usage"]["completion_tokens"] == len("Hello 🦙")


def test_settings_reach_the_model_and_content_may_come_in_parts(
    client: TestClient, services: Services, body: dict[str, Any]
) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    with answering(services, ["x"]):
        made = client.post(
            "/v1/chat/completions", json=body | {"messages": messages, "seed": 7, "top_p": 0.5, "user": "me"}
        ).json()
    with services.sessions.begin() as session:
        row = comparisons.get(session, made["id"])
    assert row.origin == "chat"
    assert row.request["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "ab"},
    ]
    assert (row.request["seed"], row.request["top_p"], row.request["max_new_tokens"]) == (7, 0.5, 5)


@pytest.mark.parametrize(
    ("changes", "status", "param"),
    [
        ({"model": "mdl_none"}, 404, None),
        ({"messages": []}, 422, "messages"),
        ({"messages": [{"role": "user", "content": ""}]}, 422, "messages.0.content"),
        ({"n": 2}, 422, "n"),
        ({"stop": ["x"]}, 422, "stop"),
        ({"temperature": 3}, 422, "temperature"),
    ],
    ids=str,
)
def test_errors_have_openais_shape(
    client: TestClient, body: dict[str, Any], changes: dict[str, Any], status: int, param: str | None
) -> None:
    answer = client.post("/v1/chat/completions", json=body | changes)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert error["message"]
    assert set(answer.json()) == {"error"}


@pytest.mark.parametrize(("code", "status"), [("context_too_short", 422), ("out_of_memory", 500)])
def test_a_failure_is_told_whole_and_streamed(
    client: TestClient, services: Services, body: dict[str, Any], code: str, status: int
) -> None:
    with answering(services, [""], code=code):
        answer = client.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    with answering(services, [""], code=code):
        text = client.post("/v1/chat/completions", json=body | {"stream": True}).text
    assert f'"code": "{code}"' in text
    assert text.rstrip().endswith("data: [DONE]")
