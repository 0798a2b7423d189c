"""Claimed comparisons with real tiny models: teacher, untrained and stored student on one prompt."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta
from importlib import import_module
from pathlib import Path

import pytest
import torch
from sqlalchemy.orm import Session, sessionmaker

from app.core.compare_schemas import BatchIn, ComparisonIn, DivergenceIn
from app.core.db import batches, comparison_view, comparisons, divergences, models
from app.core.db.tables import Comparison
from app.core.storage import ArtifactStore
from tests.waiting import until
from tests.worker.comparing import NOW, ask, read, seldom, working
from worker.comparisons import ComparisonRunner
from worker.distill.compare import ModelCache
from worker.distill.export import weights_sha256
from worker.distill.models import load_model
from worker.judging import work


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


@pytest.mark.parametrize("module", ["worker.distill.compare", "worker.readings"])
def test_the_worker_says_that_it_lives_while_it_imports(
    runner: ComparisonRunner,
    sessions: sessionmaker[Session],
    model_ids: Sequence[str],
    module: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch may take longer than a lease on a busy machine, and a worker that is told dead starts from nothing."""
    comparison_id = ask(sessions, model_ids)
    if module == "worker.readings":
        runner.run_next(worker="w")
        wanted = DivergenceIn(of=model_ids[2], teacher_id=model_ids[0], student_id=model_ids[2])
        with sessions.begin() as session:
            comparison_id = divergences.ask(session, comparison_id=comparison_id, request=wanted, now=NOW)[0].id

    def row() -> Comparison:
        with sessions.begin() as session:
            return session.get_one(Comparison, comparison_id)

    class SlowImport:
        """Finds nothing, so the usual finders do; but not before the next heartbeat."""

        def find_spec(self, name: str, *_: object) -> None:
            if name == module:
                claimed_at = row().heartbeat_at
                until(lambda: row().heartbeat_at != claimed_at)

    package, _, attribute = module.rpartition(".")
    loaded = import_module(module)
    monkeypatch.setattr(f"{package}.{attribute}", loaded)  # puts it back when the second import has replaced it
    monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [SlowImport(), *sys.meta_path])
    assert runner.run_next(worker="w") == comparison_id
    assert (row().status, row().error_message) == ("succeeded", None)


def test_answers_are_readable_while_they_are_written(
    runner: ComparisonRunner, sessions: sessionmaker[Session], long_pair: Sequence[str]
) -> None:
    """Both models are seen writing, a token each in turn; a stop keeps what there is and acts long before the end."""
    comparison_id = ask(sessions, long_pair, max_new_tokens=4000)
    with working(runner):
        until(lambda: len(read(sessions, comparison_id).answers) == 2, timeout_s=120, tick=seldom)
        partial = read(sessions, comparison_id)
        assert partial.status == "running"
        assert [answer["finish"] for answer in partial.answers] == [None, None]
        assert abs(partial.answers[0]["tokens"] - partial.answers[1]["tokens"]) <= 1
        with sessions.begin() as session:
            comparisons.request_cancel(session, comparison_id=comparison_id, now=NOW)
        until(lambda: read(sessions, comparison_id).status == "cancelled", timeout_s=120, tick=seldom)
    found = read(sessions, comparison_id)
    for answer in found.answers:
        assert answer["finish"] == "cancelled"
        assert answer["tokens"] < 4000
        assert len(found.token_ids[answer["model_id"]]) == answer["tokens"]


def test_a_pane_never_shows_other_weights_than_its_models(
    runner: ComparisonRunner,
    sessions: sessionmaker[Session],
    store: ArtifactStore,
    model_ids: Sequence[str],
    tiny_teacher: Path,
) -> None:
    """The hash is of what was read for the answer; files that are not those the job stored are not asked at all."""
    comparison_id = ask(sessions, model_ids)
    runner.run_next(worker="w")
    hashes = [answer["weights_sha256"] for answer in read(sessions, comparison_id).answers]
    stored = [str(tiny_teacher), str(store.local_path(models.storage_key(model_ids[2])))]
    device = torch.device("cpu")
    assert [hashes[0], hashes[2]] == [weights_sha256(load_model(folder, device=device)) for folder in stored]
    with sessions.begin() as session:
        models.get(session, model_ids[2]).weights_sha256 = hashes[0]
    comparison_id = ask(sessions, model_ids)
    runner.run_next(worker="w")
    found = read(sessions, comparison_id)
    assert (found.status, found.error_code, found.answers) == ("failed", "conflict", [])
    assert model_ids[2] in found.error_message


def test_a_later_turn_is_asked_after_the_models_own_answer(
    runner: ComparisonRunner, sessions: sessionmaker[Session], model_ids: Sequence[str]
) -> None:
    first = ask(sessions, model_ids)
    runner.run_next(worker="w")
    request = ComparisonIn.model_validate(
        {
            "model_ids": model_ids,
            "messages": [{"role": "user", "content": "and"}],
            "max_new_tokens": 2,
            "previous_id": first,
        }
    )
    with sessions.begin() as session:
        second = comparisons.create(session, request=request, now=NOW).id
    runner.run_next(worker="w")
    before, after = read(sessions, first), read(sessions, second)
    assert after.status == "succeeded"
    tokens = [answer["tokens"] for answer in before.answers]
    longer = [b["prompt_tokens"] - a["prompt_tokens"] for a, b in zip(before.answers, after.answers, strict=True)]
    assert all(grown > 0 for grown in longer)
    assert tokens == [len(before.token_ids[model_id]) for model_id in model_ids]


def test_a_reading_joins_to_the_answer_and_is_kept_with_its_hashes(
    runner: ComparisonRunner, sessions: sessionmaker[Session], model_ids: Sequence[str]
) -> None:
    comparison_id = ask(sessions, model_ids, max_new_tokens=24)
    runner.run_next(worker="w")
    wanted = DivergenceIn(of=model_ids[2], teacher_id=model_ids[0], student_id=model_ids[2])
    with sessions.begin() as session:
        row, _ = divergences.ask(session, comparison_id=comparison_id, request=wanted, now=NOW)
    assert runner.run_next(worker="w") == row.id
    with sessions.begin() as session:
        found = comparison_view.as_divergence(divergences.get(session, row.id)).result
    said = {answer["model_id"]: answer for answer in read(sessions, comparison_id).answers}
    assert found is not None
    assert "".join(token.text for token in found.tokens) == found.text == said[model_ids[2]]["text"]
    assert len(found.tokens) == said[model_ids[2]]["tokens"]
    assert found.teacher_weights_sha256 == said[model_ids[0]]["weights_sha256"]
    assert found.student_weights_sha256 == said[model_ids[2]]["weights_sha256"]
    # The answer was greedy, so at every place the student's first candidate is what it said.
    assert all(token.student_probability == token.student_top[0].probability for token in found.tokens)
    assert found.error_position is not None
    assert found.tokens[found.error_position].mismatch


def test_batch_rows_are_scored(
    runner: ComparisonRunner, sessions: sessionmaker[Session], model_ids: Sequence[str]
) -> None:
    request = BatchIn(dataset_id="ds_1", model_ids=model_ids, max_new_tokens=6)
    rows = [batches.DataRow(messages=[{"role": "user", "content": "the dog"}], reference="the dog sings")]
    rows.append(batches.DataRow(messages=[{"role": "user", "content": "a bird"}], reference=None))
    with sessions.begin() as session:
        batch_id = batches.create(session, request=request, rows=rows, now=NOW)[0].id
    asked = ask(sessions, model_ids)
    assert runner.run_next(worker="w") == asked  # what somebody waits for, before the rows
    assert work(runner, worker="w") == 2
    with sessions.begin() as session:
        first, second = batches.rows(session, batch_id)
    assert [score.model_id for score in first.scores] == model_ids
    assert all(score.rouge_l is not None for score in first.scores)
    assert [score.rouge_l for score in second.scores] == [None] * 3
    assert first.scores[0].kl is None
    assert all(score.kl is not None and score.kl > 0 for score in first.scores[1:])
    with sessions.begin() as session:
        assert models.get(session, model_ids[2]).tokens_per_s is not None
