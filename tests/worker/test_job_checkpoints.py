"""Attempts take over the checkpoints of the one before, in a folder and in a store that is none."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path

import pytest

from app.core.events import CheckpointSaved, Event
from app.core.storage import ArtifactStore
from tests.waiting import until
from worker.distill.checkpoint import CheckpointFolder, Moment, complete_checkpoints
from worker.job_checkpoints import JobCheckpoints


@pytest.fixture(params=["folder", "elsewhere"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactStore:
    """fsspec's memory store stands for every store that is not a folder."""
    url = f"file://{tmp_path / 'artifacts'}" if request.param == "folder" else f"memory://{uuid.uuid4().hex}"
    return ArtifactStore(url, cache_folder=tmp_path / "cache")


def attempt(store: ArtifactStore, tmp_path: Path, number: int) -> JobCheckpoints:
    return JobCheckpoints(store, job_id="job_1", attempt=number, scratch=tmp_path / "work" / str(number))


def save(folder: Path, step: int) -> CheckpointSaved:
    moment = Moment(phase="training", step=step, training_events=step)
    kept = CheckpointFolder(folder, keep_last=2).save(
        moment, about={}, needed_bytes=1, write=lambda path: (path / "weights").write_text(f"weights {step}") and None
    )
    return CheckpointSaved(step=step, bytes=kept.bytes, best=False)


def steps(folder: Path) -> list[int]:
    return [found.step for found in complete_checkpoints(folder)]


def stored_steps(store: ArtifactStore) -> list[tuple[str, int]]:
    """(attempt, step) of what the store has."""
    manifests = [key for key in store.files("checkpoints/job_1") if key.endswith("manifest.json")]
    return [(key.split("/")[2], json.loads(store.open(key).read())["moment"]["step"]) for key in manifests]


def run(kept: JobCheckpoints, *saved: int, training_events: int = 100) -> None:
    told: list[Event] = []
    kept.take_over(training_events=training_events)
    with kept.kept(told.append) as emit:
        for step in saved:
            emit(save(kept.folder, step))
    assert len(told) == len(saved)


def test_each_attempt_goes_on_with_what_the_one_before_left(store: ArtifactStore, tmp_path: Path) -> None:
    run(attempt(store, tmp_path, 1), 1, 2, 3)
    shutil.rmtree(tmp_path / "work", ignore_errors=True)  # the next attempt may be on another machine
    second = attempt(store, tmp_path, 2)
    second.take_over(training_events=100)
    assert steps(second.folder) == [2, 3]
    run(attempt(store, tmp_path, 4), 4)
    assert stored_steps(store) == [("4", 3), ("4", 4)]


def test_what_a_late_process_of_an_older_attempt_writes_is_not_read(store: ArtifactStore, tmp_path: Path) -> None:
    first = attempt(store, tmp_path, 1)
    run(first, 1)
    second = attempt(store, tmp_path, 2)
    run(second, 2)
    save(first.folder, 9)
    third = attempt(store, tmp_path, 3)
    third.take_over(training_events=100)
    assert steps(third.folder) == [1, 2]


def test_a_checkpoint_ahead_of_the_stored_events_is_dropped(store: ArtifactStore, tmp_path: Path) -> None:
    run(attempt(store, tmp_path, 1), 4, 8)
    second = attempt(store, tmp_path, 2)
    second.take_over(training_events=7)
    assert steps(second.folder) == [4]


def test_a_checkpoint_is_elsewhere_while_the_training_goes_on(tmp_path: Path) -> None:
    store = ArtifactStore(f"memory://{uuid.uuid4().hex}", cache_folder=tmp_path / "cache")
    kept = attempt(store, tmp_path, 1)
    kept.take_over(training_events=0)
    with kept.kept(lambda _: None) as emit:
        emit(save(kept.folder, 1))
        until(lambda: stored_steps(store) == [("1", 1)])


def test_what_was_kept_is_elsewhere_however_the_attempt_ended(tmp_path: Path) -> None:
    store = ArtifactStore(f"memory://{uuid.uuid4().hex}", cache_folder=tmp_path / "cache")
    kept = attempt(store, tmp_path, 1)
    kept.take_over(training_events=0)

    def fail() -> None:
        with kept.kept(lambda _: None):
            save(kept.folder, 1)
            raise OSError

    with pytest.raises(OSError, match=r"^$"):
        fail()
    assert stored_steps(store) == [("1", 1)]
