"""Claimed comparisons with real tiny models: teacher, untrained and stored student on one prompt."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy.orm import Session, sessionmaker

from app.core.db import comparisons, jobs, models
from app.core.db.tables import Comparison
from app.core.ids import new_id
from app.core.job_config import DistillConfig
from app.core.compare_schemas import ComparisonIn
from app.core.storage import ArtifactStore
from worker.comparisons import ComparisonRunner
from worker.distill.compare import ModelCache

NOW = datetime.now(UTC)


@pytest.fixture
def runner(sessions: sessionmaker[Session], store: ArtifactStore) -> ComparisonRunner:
    cache = ModelCache()
    return ComparisonRunner(sessions=sessions, store=store, cache=lambda: cache, heartbeat_s=0.05)


@pytest.fixture
def model_ids(
    sessions: sessionmaker[Session], store: ArtifactStore, tiny_teacher: Path, tiny_student: Path
) -> Sequence[str]:
    """Ids of a teacher, a job's untrained student and its stored student."""
    config = DistillConfig.model_validate(
        {
            "teacher": {"model": str(tiny_teacher)},
            "student": {"kind": "from_teacher", "layers": 3},
            "data": {"kind": "dataset", "dataset_id": "ds_any"},
        }
    )
    student_id = new_id("mdl")
    store.put_folder(tiny_student, models.storage_key(student_id))
    with sessions.begin() as session:
        job = jobs.create(session, name="test", config=config, priority=0, now=NOW)
        source = str(tiny_teacher)
        teacher = models.ensure_teacher(session, source=source, parameters=None, now=NOW)
        untrained = models.create_untrained(
            session, job_id=job.id, name="test", source=source, parameters=None, now=NOW
        )
        models.create_student(
            session,
            model_id=student_id,
            job_id=job.id,
            name="test",
            parameters=1,
            weights_sha256="",
            card={},
            now=NOW,
        )
        return [teacher.id, untrained.id, student_id]


def ask(sessions: sessionmaker[Session], model_ids: Sequence[str], *, max_new_tokens: int = 6) -> str:
    request = ComparisonIn.model_validate(
        {
            "model_ids": model_ids,
            "messages": [{"role": "user", "content": "the small brown dog"}],
            "max_new_tokens": max_new_tokens,
        }
    )
    with sessions.begin() as session:
        return comparisons.create(session, request=request, now=NOW).id


def read(sessions: sessionmaker[Session], comparison_id: str) -> Comparison:
    with sessions.begin() as session:
        return comparisons.get(session, comparison_id)


def test_nothing_queued(runner: ComparisonRunner) -> None:
    assert runner.run_next(worker="w") is None


def test_each_model_answers_in_the_order_asked(
    runner: ComparisonRunner, sessions: sessionmaker[Session], model_ids: Sequence[str]
) -> None:
    comparison_id = ask(sessions, model_ids)
    assert runner.run_next(worker="w") == comparison_id
    found = read(sessions, comparison_id)
    assert (found.status, found.error_code) == ("succeeded", None)
    assert [answer["model_id"] for answer in found.answers] == model_ids
    teacher, untrained, student = found.answers
    assert teacher["parameters"] > untrained["parameters"] > student["parameters"]
    assert len({answer["weights_sha256"] for answer in found.answers}) == 3
    for answer in found.answers:
        assert 1 <= answer["tokens"] <= 6
        assert answer["tokens_per_s"] == pytest.approx(answer["tokens"] / answer["seconds"])


def test_greedy_answers_repeat(
    runner: ComparisonRunner, sessions: sessionmaker[Session], model_ids: Sequence[str]
) -> None:
    first, second = ask(sessions, model_ids), ask(sessions, model_ids)
    runner.run_next(worker="w")
    runner.run_next(worker="w")
    texts = [[answer["text"] for answer in read(sessions, which).answers] for which in (first, second)]
    assert texts[0] == texts[1]


def test_prompt_beyond_the_context_fails_with_its_code(
    runner: ComparisonRunner, sessions: sessionmaker[Session], model_ids: Sequence[str]
) -> None:
    comparison_id = ask(sessions, model_ids, max_new_tokens=4096)
    runner.run_next(worker="w")
    found = read(sessions, comparison_id)
    assert (found.status, found.error_code) == ("failed", "context_too_short")
    assert "max_new_tokens" in found.error_message


def test_student_whose_files_are_gone(
    runner: ComparisonRunner, sessions: sessionmaker[Session], store: ArtifactStore, model_ids: Sequence[str]
) -> None:
    store.delete(models.storage_key(model_ids[2]))
    comparison_id = ask(sessions, model_ids)
    runner.run_next(worker="w")
    found = read(sessions, comparison_id)
    assert (found.status, found.error_code) == ("failed", "not_found")
    assert model_ids[2] in found.error_message


def test_lost_claim_writes_nothing(
    sessions: sessionmaker[Session], store: ArtifactStore, model_ids: Sequence[str]
) -> None:
    """Another worker takes the comparison over while the first one is at it."""

    class SlowCache(ModelCache):
        def get(self, source):  # type: ignore[no-untyped-def]
            with sessions.begin() as session:
                later = NOW + timedelta(hours=1)
                if comparisons.requeue_stale(session, now=later, lease_s=60):
                    comparisons.claim_next(session, worker="other", now=later)
            return super().get(source)

    comparison_id = ask(sessions, model_ids)
    ComparisonRunner(sessions=sessions, store=store, cache=SlowCache, heartbeat_s=0.05).run_next(worker="w")
    found = read(sessions, comparison_id)
    assert (found.status, found.worker, found.answers) == ("running", "other", [])
