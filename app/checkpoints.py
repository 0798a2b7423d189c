"""What a job could go on from, as the artifact store has it.

Knows where checkpoints are and what their manifests say. Does not know what else is in one; whether its contents are
what was written is checked by whoever goes on from it.
"""

from __future__ import annotations

import json
from typing import Any

from app.core.db.jobs import checkpoints_key
from app.core.schemas import CheckpointOut
from app.core.storage import ArtifactStore

_MANIFEST = "manifest.json"
_DEPTH = 3  # attempt/checkpoint/manifest.json below the job's folder


def of_job(store: ArtifactStore, job_id: str) -> list[CheckpointOut]:
    """The complete checkpoints of the newest attempt that has any, newest first. One that is removed while this reads
    is left out."""
    by_attempt: dict[int, list[dict[str, Any]]] = {}
    prefix = f"{checkpoints_key(job_id)}/"
    for key in store.files(prefix):
        parts = key.removeprefix(prefix).split("/")
        if len(parts) == _DEPTH and parts[-1] == _MANIFEST and parts[0].isdigit() and not parts[1].startswith("."):
            by_attempt.setdefault(int(parts[0]), []).extend(_manifest(store, key))
    manifests = next((found for _, found in sorted(by_attempt.items(), reverse=True) if found), [])
    trained = [manifest["moment"] for manifest in manifests if manifest["moment"]["phase"] == "training"]
    best_step = max(trained, key=lambda moment: moment["step"])["best_step"] if trained else None
    found = [
        CheckpointOut(
            step=manifest["moment"]["step"],
            phase=manifest["moment"]["phase"],
            bytes=sum(file["bytes"] for file in manifest["files"].values()),
            best=manifest["moment"] in trained and manifest["moment"]["step"] == best_step,
        )
        for manifest in sorted(manifests, key=lambda manifest: manifest["moment"]["training_events"], reverse=True)
    ]
    return sorted(found, key=lambda checkpoint: checkpoint.phase != "training")  # a warm-up comes before the training


def _manifest(store: ArtifactStore, key: str) -> list[dict[str, Any]]:
    try:
        with store.open(key) as file:
            manifest = json.load(file)
    except (OSError, ValueError):
        return []
    return [manifest] if {"moment", "files"} <= manifest.keys() else []
