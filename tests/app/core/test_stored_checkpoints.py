"""One checkpoint by its name; `tests/app/test_checkpoints.py` has what a crash may leave in the store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.core.db.jobs import checkpoints_key
from app.core.errors import NotFound
from app.core.model_ids import CheckpointId
from app.core.storage import ArtifactStore
from app.core.stored_checkpoints import find


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(f"file://{tmp_path}")


def put(store: ArtifactStore, step: int, *, attempt: int = 1, phase: str = "training") -> None:
    manifest = {"moment": {"step": step, "phase": phase}, "files": {}}
    with store.open(f"{checkpoints_key('job_1')}/{attempt}/{phase}-{step}/manifest.json", "w") as file:
        file.write(json.dumps(manifest))


def test_the_newest_attempts_checkpoint_is_found(store: ArtifactStore) -> None:
    put(store, 20)
    put(store, 20, attempt=2)
    found = find(store, CheckpointId("job_1", 20))
    assert found.key == f"{checkpoints_key('job_1')}/2/training-20"
    assert found.beside == f"{checkpoints_key('job_1')}/2"


def test_what_is_not_there_is_told_with_what_is(store: ArtifactStore) -> None:
    with pytest.raises(NotFound, match=r"it has none now.*training.keep_last"):
        find(store, CheckpointId("job_1", 20))
    put(store, 20, phase="student_sft")  # a warm-up's weights are nobody's to ask
    put(store, 60)
    put(store, 40)
    with pytest.raises(NotFound, match=r"no checkpoint of step 20 .any more.: it has those of steps 40, 60"):
        find(store, CheckpointId("job_1", 20))
