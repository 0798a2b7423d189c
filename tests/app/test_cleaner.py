"""What is too old goes, what belongs to nobody goes, and nothing that is still needed."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session, sessionmaker

from app.cleaner import Cleaner, Keep
from app.core.compare_schemas import ChatMessage, ComparisonIn
from app.core.db import comparisons, datasets, events, job_requests, jobs, models, retention, workers
from app.core.db.tables import Comparison, EventRow, Metric, MetricRange
from app.core.db.workers import WorkerReport
from app.core.events import StepDone
from app.core.folder_cache import FolderCache
from app.core.storage import ArtifactStore
from tests.app.conftest import Clock, make_config

Sessions = sessionmaker[Session]
DAYS = timedelta(days=1)
YEAR = 365 * 86400.0


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(f"file://{tmp_path / 'artifacts'}")


@pytest.fixture
def cleaner(sessions: Sessions, store: ArtifactStore, clock: Clock, tmp_path: Path) -> Cleaner:
    keep = Keep(checkpoints=14 * DAYS, events=100 * DAYS, comparisons=100 * DAYS)
    return Cleaner(
        sessions=sessions,
        store=store,
        work_folder=tmp_path / "work",
        states=make_states(tmp_path),
        keep=keep,
        clock=clock,
    )


def make_states(folder: Path) -> FolderCache:
    return FolderCache(folder / "states", limit_bytes=250)


def put(store: ArtifactStore, key: str, *, at: datetime) -> None:
    """A file that was last written then."""
    with store.open(key, "wb") as file:
        file.write(b"content")
    path = store.local_path(key)
    os.utime(path, (at.timestamp(), at.timestamp()))


def make_job(sessions: Sessions, clock: Clock, status: str) -> str:
    """A job in that status, with 40 steps if it ever ran."""
    with sessions.begin() as session:
        job = jobs.create(session, name=status, config=make_config(), priority=0, now=clock())
        if status == "queued":
            return job.id
        jobs.claim_next(session, worker="w", now=clock())
        steps = [
            StepDone(
                step=i, max_steps=40, source="fresh", tokens=1, tokens_per_s=1.0, eta_s=0.0, metrics={"a": 1.0 * i}
            )
            for i in range(1, 41)
        ]
        events.append(session, job_id=job.id, attempt=1, events=steps, now=clock())
        if status != "running":
            ended = {"code": "non_finite_loss"} if status == "failed" else {}
            jobs.finish(session, job_id=job.id, attempt=1, status=status, now=clock(), **ended)
        return job.id


def counts(sessions: Sessions, job_id: str) -> tuple[int, int, int]:
    """Events, points and ranges of the job."""
    with sessions.begin() as session:
        return tuple(  # type: ignore[return-value]
            session.scalar(select(func.count()).select_from(table).where(table.job_id == job_id))
            for table in (EventRow, Metric, MetricRange)
        )


def compare(sessions: Sessions, clock: Clock, *, ends: bool) -> str:
    request = ComparisonIn(model_ids=["mdl_1"], messages=[ChatMessage(role="user", content="hi")])
    with sessions.begin() as session:
        made = comparisons.create(session, request=request, now=clock())
        if ends:
            claim = comparisons.claim_next(session, worker="w", now=clock())
            assert claim is not None
            comparisons.finish(session, comparison_id=claim.comparison_id, attempt=claim.attempt, now=clock())
        return made.id


def test_what_runs_waits_or_is_paused_is_never_touched(
    cleaner: Cleaner, sessions: Sessions, store: ArtifactStore, clock: Clock
) -> None:
    kept = [make_job(sessions, clock, status) for status in ("running", "paused", "queued")]
    waiting = compare(sessions, clock, ends=False)
    for job_id in kept:
        put(store, f"{jobs.checkpoints_key(job_id)}/1/step-00000010/model.bin", at=clock())
    before = [counts(sessions, job_id) for job_id in kept]
    clock.advance(10 * YEAR)
    assert cleaner.clean() == []
    assert [counts(sessions, job_id) for job_id in kept] == before
    assert all(store.exists(jobs.checkpoints_key(job_id)) for job_id in kept)
    with sessions.begin() as session:
        assert session.get(Comparison, waiting) is not None


@pytest.mark.parametrize("status", ["succeeded", "failed", "cancelled"])
def test_an_ended_job_loses_its_checkpoints_first_and_then_its_history(
    cleaner: Cleaner, sessions: Sessions, store: ArtifactStore, clock: Clock, status: str
) -> None:
    job_id = make_job(sessions, clock, status)
    checkpoints = jobs.checkpoints_key(job_id)
    put(store, f"{checkpoints}/1/step-00000010/model.bin", at=clock())
    before = counts(sessions, job_id)
    assert before == (43, 40, 12)
    clock.advance(13 * 86400)
    assert cleaner.clean() == []
    clock.advance(2 * 86400)
    assert [removal.what for removal in cleaner.clean()] == [checkpoints]
    assert not store.exists(checkpoints)
    assert counts(sessions, job_id) == before
    clock.advance(YEAR)
    assert [removal.what for removal in cleaner.clean()] == [f"events and curves of {job_id}"]
    assert counts(sessions, job_id) == (1, 0, 0)
    with sessions.begin() as session:
        (last,), _ = events.page(session, job_id=job_id, after=0, limit=10)
        assert last.payload["status"] == status
        assert jobs.get(session, job_id).trimmed_at == clock()
    assert cleaner.clean() == []


def test_a_job_that_is_retried_in_between_keeps_everything(
    cleaner: Cleaner, sessions: Sessions, store: ArtifactStore, clock: Clock
) -> None:
    """The cleaner looked, then the owner retried, then the cleaner acts."""
    job_id = make_job(sessions, clock, "failed")
    put(store, f"{jobs.checkpoints_key(job_id)}/1/step-00000010/model.bin", at=clock())
    before = counts(sessions, job_id)
    clock.advance(YEAR)
    found = list(cleaner.find())
    assert len(found) == 2
    with sessions.begin() as session:
        job_requests.retry(session, job_id=job_id, from_checkpoint=True, now=clock())
    for removal in found:
        removal.remove()
    assert store.exists(jobs.checkpoints_key(job_id))
    assert counts(sessions, job_id) == (before[0] + 1, *before[1:])


def test_a_checkpoint_that_somebody_is_asking_stays_until_it_is_answered(
    cleaner: Cleaner, sessions: Sessions, store: ArtifactStore, clock: Clock
) -> None:
    job_id = make_job(sessions, clock, "succeeded")
    key = jobs.checkpoints_key(job_id)
    put(store, f"{key}/1/step-00000010/manifest.json", at=clock())
    clock.advance(YEAR)
    found = {removal.what: removal for removal in cleaner.find()}
    request = ComparisonIn(model_ids=[f"{job_id}@10"], messages=[ChatMessage(role="user", content="Hi")])
    with sessions.begin() as session:
        asked = comparisons.create(session, request=request, now=clock()).id
    found[key].remove()  # it looked before somebody asked, and acts afterwards
    assert key not in {removal.what for removal in cleaner.clean()}
    assert store.exists(key)
    with sessions.begin() as session:
        comparisons.request_cancel(session, comparison_id=asked, now=clock())
    assert key in {removal.what for removal in cleaner.clean()}
    assert not store.exists(key)


def test_a_job_retried_after_its_history_was_trimmed_is_trimmed_again(
    cleaner: Cleaner, sessions: Sessions, clock: Clock
) -> None:
    job_id = make_job(sessions, clock, "failed")
    clock.advance(YEAR)
    cleaner.clean()
    with sessions.begin() as session:
        job_requests.retry(session, job_id=job_id, from_checkpoint=True, now=clock())
        jobs.claim_next(session, worker="w", now=clock())
        jobs.finish(session, job_id=job_id, attempt=2, status="succeeded", now=clock())
    clock.advance(YEAR)
    assert [removal.what for removal in cleaner.clean()] == [f"events and curves of {job_id}"]
    assert counts(sessions, job_id) == (1, 0, 0)


def test_a_long_history_is_removed_piece_by_piece(
    sessions: Sessions, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_EVENTS_AT_ONCE", 10)
    monkeypatch.setattr(retention, "_STEPS_AT_ONCE", 10)
    job_id = make_job(sessions, clock, "succeeded")
    clock.advance(YEAR)
    left = []
    while True:
        with sessions.begin() as session:
            has_more = retention.trim(session, job_id=job_id, before=clock(), now=clock())
        left.append(counts(sessions, job_id))
        if not has_more:
            break
    assert left[0] == (33, 40, 12)
    assert left[-1] == (1, 0, 0)
    assert all(one[0] - two[0] <= 10 and one[1] - two[1] <= 10 for one, two in pairwise(left))


def test_old_comparisons_go(cleaner: Cleaner, sessions: Sessions, clock: Clock) -> None:
    old = compare(sessions, clock, ends=True)
    clock.advance(99 * 86400)
    young = compare(sessions, clock, ends=True)
    clock.advance(2 * 86400)
    assert [removal.what for removal in cleaner.clean()] == [old]
    with sessions.begin() as session:
        assert list(session.scalars(select(Comparison.id))) == [young]


def test_files_of_nobody_go_once_they_are_a_day_old(
    cleaner: Cleaner, sessions: Sessions, store: ArtifactStore, clock: Clock
) -> None:
    """An upload or an export that is under way has no row yet either."""
    with sessions.begin() as session:
        datasets.create(
            session, dataset_id="ds_1", name="a", format="prompt", rows=1, rows_with_response=0, problems=[],
            sha256="", now=clock(),
        )  # fmt: skip
        models.create_student(
            session, model_id="mdl_1", job_id="job_1", name="a", parameters=1, weights_sha256="", card={}, now=clock()
        )
    owned = ["datasets/ds_1.jsonl", "students/mdl_1/model.safetensors"]
    orphans = [
        "checkpoints/job_gone/1/step-00000001/a",
        "datasets/ds_gone.jsonl",
        "students/.mdl_2.f00/a",
        "students/mdl_2/a",
    ]
    for key in (*owned, *orphans):
        put(store, key, at=clock())
    put(store, "students/mdl_2/b", at=clock.advance(3600))  # written last
    clock.advance(86400 - 1)
    removed = {removal.what for removal in cleaner.clean()}
    assert removed == {"checkpoints/job_gone", "datasets/ds_gone.jsonl", "students/.mdl_2.f00"}
    clock.advance(2)
    assert [removal.what for removal in cleaner.clean()] == ["students/mdl_2"]
    assert all(store.exists(key) for key in owned)
    clock.advance(10 * YEAR)
    assert cleaner.clean() == []


def test_work_folders_of_jobs_that_do_not_run_go(cleaner: Cleaner, sessions: Sessions, clock: Clock) -> None:
    running, gone = make_job(sessions, clock, "running"), "job_gone"
    for name in (running, gone):
        file = cleaner.work_folder / name / "1" / "model.bin"
        file.parent.mkdir(parents=True)
        file.write_bytes(b"content")
        for path in (file, *file.parents[:2]):
            os.utime(path, (clock().timestamp(), clock().timestamp()))
    clock.advance(86400 - 1)
    assert cleaner.clean() == []
    clock.advance(2)
    assert [removal.what for removal in cleaner.clean()] == [str(cleaner.work_folder / gone)]
    assert [path.name for path in cleaner.work_folder.iterdir()] == [running]


def test_teacher_states_over_the_limit_go_the_longest_unused_first(cleaner: Cleaner, clock: Clock) -> None:
    for age, key in enumerate(("newest", "middle", "oldest")):
        folder = cleaner.states.folder / key
        folder.mkdir(parents=True)
        (folder / "states.bin").write_bytes(b"x" * 100)
        os.utime(folder, (clock().timestamp() - 60 * age,) * 2)
    left = cleaner.states.scratch()
    os.utime(left, (clock().timestamp(),) * 2)
    assert [removal.what for removal in cleaner.find()] == ["teacher states oldest"]
    clock.advance(2 * 86400)
    assert [removal.what for removal in cleaner.clean()] == ["teacher states oldest", str(left)]
    assert [entry.key for entry in cleaner.states.entries()] == ["middle", "newest"]
    assert cleaner.clean() == []


def test_workers_that_were_silent_for_a_day_leave_the_list(cleaner: Cleaner, sessions: Sessions, clock: Clock) -> None:
    said = WorkerReport(
        name="training@a",
        queue="training",
        host="a",
        pid=1,
        device="cpu",
        memory_bytes=1,
        versions={},
        started_at=clock(),
    )
    with sessions.begin() as session:
        workers.report(session, said, now=clock())
    clock.advance(86400 - 1)
    assert cleaner.clean() == []
    clock.advance(2)
    assert [removal.what for removal in cleaner.clean()] == ["worker training@a"]
    assert cleaner.clean() == []


def test_finding_removes_nothing_and_a_batch_has_a_limit(
    cleaner: Cleaner, sessions: Sessions, store: ArtifactStore, clock: Clock
) -> None:
    for number in range(5):
        put(store, f"datasets/ds_{number}.jsonl", at=clock())
    clock.advance(2 * 86400)
    assert len(list(cleaner.find())) == 5
    assert [removal.what for removal in cleaner.clean(at_most=2)] == ["datasets/ds_0.jsonl", "datasets/ds_1.jsonl"]
    assert len(list(cleaner.find())) == 3


@pytest.mark.parametrize("forever", [Keep(checkpoints=None, events=None, comparisons=None)])
def test_nothing_is_too_old_when_it_is_kept_for_ever(
    cleaner: Cleaner, sessions: Sessions, store: ArtifactStore, clock: Clock, forever: Keep
) -> None:
    job_id = make_job(sessions, clock, "succeeded")
    compare(sessions, clock, ends=True)
    put(store, f"{jobs.checkpoints_key(job_id)}/1/step-00000010/model.bin", at=clock())
    clock.advance(50 * YEAR)
    assert replace(cleaner, keep=forever).clean() == []
