"""A job's checkpoints as the API lists them: what it could go on from, and what can be asked.

Knows their order and shape. Does not know where they are (`core.stored_checkpoints`), nor what is in one.
"""

from __future__ import annotations

from app.core import stored_checkpoints
from app.core.model_ids import CheckpointId
from app.core.schemas import CheckpointOut
from app.core.storage import ArtifactStore


def of_job(store: ArtifactStore, job_id: str) -> list[CheckpointOut]:
    """The complete checkpoints of the newest attempt that has any, newest first; a warm-up's come behind."""
    stored = stored_checkpoints.newest(store, job_id)
    trained = [one.moment for one in stored if one.is_of_training]
    best_step = max(trained, key=lambda moment: moment["step"])["best_step"] if trained else None
    found = [
        CheckpointOut(
            step=one.moment["step"],
            phase=one.moment["phase"],
            bytes=sum(file["bytes"] for file in one.manifest["files"].values()),
            best=one.is_of_training and one.moment["step"] == best_step,
            model_id=str(CheckpointId(job_id, one.moment["step"])) if one.is_of_training else None,
        )
        for one in sorted(stored, key=lambda one: one.moment["training_events"], reverse=True)
    ]
    return sorted(found, key=lambda checkpoint: checkpoint.phase != "training")  # a warm-up comes before the training
