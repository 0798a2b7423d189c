"""Judging over real HTTP: both orders, unclear replies, a thread beside the worker, and rows that a judge left."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from app.core.compare_schemas import BatchIn
from app.core.db import batches, models
from app.core.db.tables import Comparison
from app.core.queue import RecordingQueue
from app.core.storage import ArtifactStore
from app.deps import Services, utc_now
from app.doorbell import Doorbell
from app.main import create_app
from tests.running_service import free_port
from tests.tiny_models import make_tiny_model
from tests.waiting import until
from worker.comparisons import ComparisonRunner
from worker.distill.compare import ModelCache
from worker.judging import Judge, Judging, make_http, side_of, work

NOW = datetime.now(UTC)


@contextmanager
def judge_server(reply: str) -> Iterator[str]:
    """A server that judges by a simple rule: `longer` prefers the longer answer, anything else is said as it is."""
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def complete(request: Request) -> dict:  # type: ignore[type-arg]
        if request.headers.get("authorization") != "Bearer key":
            raise HTTPException(401)
        text = (await request.json())["messages"][0]["content"]
        a, b = (text.split(f"<answer_{side}>\n")[1].split(f"\n</answer_{side}>")[0] for side in "ab")
        said = f"[[{'A' if len(a) > len(b) else 'B'}]]" if reply == "longer" else reply
        return {"choices": [{"message": {"role": "assistant", "content": said}}]}

    with serving(app) as url:
        yield f"{url}/v1"


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [("longer", "first"), ("[[A]]", "tie"), ("[[tie]]", "tie"), ("I cannot say.", "unclear")],
)
def test_an_answer_wins_only_in_both_orders(reply: str, outcome: str) -> None:
    with judge_server(reply) as url, make_http(url, "key") as http:
        judge = Judge(http=http, model="any")
        assert judge.outcome("why?", "a long answer", "short") == outcome
        if reply == "longer":
            assert judge.outcome("why?", "short", "a long answer") == "other"


def test_a_judge_that_refuses_or_is_away_is_unclear() -> None:
    with judge_server("[[A]]") as url, make_http(url, None) as http:
        assert Judge(http=http, model="any").outcome("q", "a", "b") == "unclear"
    with make_http(f"http://127.0.0.1:{free_port()}", None) as http:
        assert Judge(http=http, model="any").outcome("q", "a", "b") == "unclear"


@pytest.mark.parametrize(
    ("text", "side"),
    [("[[A]]", "A"), ("So: [[b]].", "B"), ("Tie.", "tie"), (" B ", "B"), ("A good answer", None), ("", None)],
)
def test_verdicts_are_read_strictly(text: str, side: str | None) -> None:
    assert side_of(text) == side


@pytest.fixture
def runner(sessions: sessionmaker[Session], store: ArtifactStore) -> ComparisonRunner:
    cache = ModelCache()
    return ComparisonRunner(sessions=sessions, store=store, cache=lambda: cache, heartbeat_s=0.05)


@pytest.fixture
def batch_id(sessions: sessionmaker[Session], tiny_teacher: Path, tiny_student: Path) -> str:
    """A judged batch of two rows for two models."""
    with sessions.begin() as session:
        ids = [
            models.ensure_teacher(session, source=str(folder), parameters=None, now=NOW).id
            for folder in (tiny_teacher, tiny_student)
        ]
        request = BatchIn(dataset_id="ds_1", model_ids=ids, max_new_tokens=4, judge=True)
        rows = [batches.DataRow(messages=[{"role": "user", "content": text}], reference=None) for text in ("a", "b")]
        return batches.create(session, request=request, rows=rows, now=NOW)[0].id


def outcomes(sessions: sessionmaker[Session], batch_id: str) -> Sequence[str]:
    with sessions.begin() as session:
        return [verdict.outcome for row in batches.rows(session, batch_id) for verdict in row.verdicts]


def test_rows_are_answered_and_judged_before_the_work_is_done(
    runner: ComparisonRunner, sessions: sessionmaker[Session], batch_id: str
) -> None:
    with judge_server("[[tie]]") as url, make_http(url, "key") as http:
        with Judging(sessions=sessions, judge=Judge(http=http, model="any")) as judging:
            assert work(runner, worker="w", judging=judging) == 2
        assert outcomes(sessions, batch_id) == ["tie", "tie"]
    with sessions.begin() as session:
        shape = batches.as_shape(session, batches.get(session, batch_id))
    assert (shape.status, shape.done, shape.judged) == ("succeeded", 2, 2)


def test_a_row_that_a_judge_left_is_anothers_after_a_while(
    runner: ComparisonRunner, sessions: sessionmaker[Session], batch_id: str
) -> None:
    assert work(runner, worker="w") == 2
    with sessions.begin() as session:
        assert batches.as_shape(session, batches.get(session, batch_id)).status == "judging"
        first, second = (batches.claim_unjudged(session, now=NOW) for _ in range(2))
        assert first is not None
        assert second is not None
        assert first.id != second.id
        assert batches.claim_unjudged(session, now=NOW) is None
        later = batches.claim_unjudged(session, now=NOW + timedelta(seconds=batches.JUDGE_LEASE_S + 1))
        assert later is not None
        assert later.id == first.id


def test_the_judge_may_be_this_very_service(
    runner: ComparisonRunner,
    sessions: sessionmaker[Session],
    store: ArtifactStore,
    batch_id: str,
    tmp_path: Path,
) -> None:
    """One worker answers the batch and the judge's questions about it, which come back over HTTP: nobody waits for
    ever. A random model gives no verdict, and that is what is stored."""
    with sessions.begin() as session:
        folder = make_tiny_model(tmp_path / "judge", context=2048)
        model = models.ensure_teacher(session, source=str(folder), parameters=None, now=NOW).id
    with (
        own_api(sessions, store) as url,
        make_http(f"{url}/v1", None) as http,
        Judging(sessions=sessions, judge=Judge(http=http, model=model)) as judging,
    ):
        assert work(runner, worker="w", judging=judging) == 2 + 2 * 2  # the rows, and both orders of each
    assert outcomes(sessions, batch_id) == ["unclear", "unclear"]
    with sessions.begin() as session:
        asked = session.scalars(select(Comparison).where(Comparison.origin == "chat")).all()
        assert {row.status for row in asked} == {"succeeded"}
        assert {row.request["max_new_tokens"] for row in asked} == {16}


@contextmanager
def own_api(sessions: sessionmaker[Session], store: ArtifactStore) -> Iterator[str]:
    """The service's API over the same database."""
    queue = RecordingQueue()
    services = Services(
        engine=sessions.kw["bind"],
        sessions=sessions,
        queue=queue,
        doorbell=Doorbell(queue=queue, sessions=sessions, clock=utc_now),
        store=store,
    )
    with serving(create_app(services=services)) as url:
        yield url
