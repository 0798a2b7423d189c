"""What the artifact store holds of a job's checkpoints, for all who read them.

Knows keys and manifests. Does not know what is in a checkpoint; whether its files are what was written is checked by
whoever loads them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.core.db.jobs import checkpoints_key
from app.core.errors import NotFound
from app.core.model_ids import CheckpointId
from app.core.storage import ArtifactStore

_MANIFEST = "manifest.json"
_DEPTH = 3  # attempt/checkpoint/manifest.json below the job's folder


@dataclass(frozen=True, kw_only=True)
class StoredCheckpoint:
    """A complete checkpoint: its folder's key, and its manifest with `moment` and `files`."""

    key: str
    manifest: Mapping[str, Any]

    @property
    def moment(self) -> Mapping[str, Any]:
        return self.manifest["moment"]

    @property
    def is_of_training(self) -> bool:
        """Rather than of a warm-up."""
        return self.moment["phase"] == "training"

    @property
    def beside(self) -> str:
        """The key of the folder that this and the attempt's other checkpoints are in."""
        return self.key.rpartition("/")[0]


def newest(store: ArtifactStore, job_id: str) -> list[StoredCheckpoint]:
    """The complete checkpoints of the newest attempt that has any, in no order. One that is removed while this reads is
    left out."""
    by_attempt: dict[int, list[StoredCheckpoint]] = {}
    prefix = f"{checkpoints_key(job_id)}/"
    for key in store.files(prefix):
        parts = key.removeprefix(prefix).split("/")
        if len(parts) == _DEPTH and parts[-1] == _MANIFEST and parts[0].isdigit() and not parts[1].startswith("."):
            manifest = _manifest(store, key)
            if manifest is not None:
                stored = StoredCheckpoint(key=key.removesuffix(f"/{_MANIFEST}"), manifest=manifest)
                by_attempt.setdefault(int(parts[0]), []).append(stored)
    return next((found for _, found in sorted(by_attempt.items(), reverse=True)), [])


def find(store: ArtifactStore, wanted: CheckpointId) -> StoredCheckpoint:
    """Raises NotFound, with the steps that there are and what to do."""
    trained = {one.moment["step"]: one for one in newest(store, wanted.job_id) if one.is_of_training}
    if wanted.step in trained:
        return trained[wanted.step]
    there = f"it has those of steps {', '.join(map(str, sorted(trained)))}" if trained else "it has none now"
    raise NotFound(
        f"{wanted.job_id} has no checkpoint of step {wanted.step} (any more): {there}. A job keeps its newest and its "
        "best ones; choose one of them, or let a job keep more with training.keep_last"
    )


def _manifest(store: ArtifactStore, key: str) -> Mapping[str, Any] | None:
    try:
        with store.open(key) as file:
            manifest = json.load(file)
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) and {"moment", "files"} <= manifest.keys() else None
