"""What the store holds of a job's checkpoints, whatever state a crash left it in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app import checkpoints
from app.core.db.jobs import checkpoints_key
from app.core.storage import ArtifactStore


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(f"file://{tmp_path}")


def put(
    store: ArtifactStore,
    step: int,
    *,
    attempt: int = 1,
    phase: str = "training",
    best_step: int | None = None,
    folder: str | None = None,
) -> str:
    """A checkpoint of 30 bytes, and the key of its manifest."""
    moment: dict[str, Any] = {"step": step, "phase": phase, "training_events": step, "best_step": best_step}
    manifest = {"moment": moment, "files": {"a": {"bytes": 10}, "b": {"bytes": 20}}}
    key = f"{checkpoints_key('job_1')}/{attempt}/{folder or f'{phase}-{step:08d}'}/manifest.json"
    with store.open(key, "wb") as file:
        file.write(json.dumps(manifest).encode())
    return key


def steps(store: ArtifactStore) -> list[int]:
    return [checkpoint.step for checkpoint in checkpoints.of_job(store, "job_1")]


def test_a_job_without_checkpoints_has_none(store: ArtifactStore) -> None:
    assert checkpoints.of_job(store, "job_1") == []


def test_the_newest_comes_first_and_the_best_is_marked(store: ArtifactStore) -> None:
    for step in (10, 20, 30):
        put(store, step, best_step=20 if step > 10 else 10)
    found = checkpoints.of_job(store, "job_1")
    assert [(checkpoint.step, checkpoint.best) for checkpoint in found] == [(30, False), (20, True), (10, False)]
    assert {checkpoint.bytes for checkpoint in found} == {30}


def test_a_warm_up_comes_behind_the_training_and_is_never_the_best(store: ArtifactStore) -> None:
    put(store, 40, phase="student_sft")
    put(store, 10, best_step=None)
    assert [(c.phase, c.step, c.best) for c in checkpoints.of_job(store, "job_1")] == [
        ("training", 10, False),
        ("student_sft", 40, False),
    ]


def test_only_the_newest_attempt_that_saved_anything_counts(store: ArtifactStore) -> None:
    put(store, 50, attempt=9)
    put(store, 20, attempt=10)
    assert steps(store) == [20]


def test_what_is_not_a_whole_checkpoint_is_left_out(store: ArtifactStore) -> None:
    put(store, 10)
    put(store, 20, folder=".tmp-training-00000020")
    torn, other = put(store, 30), put(store, 40)
    with store.open(torn, "wb") as file:
        file.write(b'{"moment": {"st')
    with store.open(other, "wb") as file:
        file.write(b'{"something": "else"}')
    with store.open(f"{checkpoints_key('job_1')}/1/training-00000050/model.bin", "wb") as file:
        file.write(b"its manifest was not written yet")
    assert steps(store) == [10]
