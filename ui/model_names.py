"""What people call what can be asked: teachers, students, and checkpoints of a job.

Knows ModelOut and how a checkpoint's id is written. Names are the users', and text: whoever shows one escapes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from app.core.model_ids import CheckpointId, checkpoint_id
from app.core.schemas import ModelOut
from ui.text import model_name

KINDS = {
    "teacher": "Teacher",
    "untrained": "Untrained student",
    "student": "Student",
    "checkpoint": "Checkpoint",
}
Models = Mapping[str, ModelOut]


def kind_of(model_id: str, models: Models) -> str | None:
    """One of KINDS; None for a model that is gone (or A and B before the vote)."""
    if checkpoint_id(model_id):
        return "checkpoint"
    return models[model_id].kind if model_id in models else None


def name_of(model_id: str, models: Models) -> str:
    """Without the kind. A checkpoint is called by its job's name, as the job's other models know it, and its step; what
    nobody knows any more by its id."""
    checkpoint = checkpoint_id(model_id)
    if checkpoint:
        return f"{_job_name(checkpoint, models)} · step {checkpoint.step:,}"
    return model_name_of(models[model_id]) if model_id in models else model_id


def _job_name(checkpoint: CheckpointId, models: Models) -> str:
    of_job = [model for model in models.values() if model.job_id == checkpoint.job_id]
    untrained = next((model for model in of_job if model.kind == "untrained"), None)
    return model_name_of(untrained) if untrained else checkpoint.job_id


def model_name_of(model: ModelOut) -> str:
    """Of a teacher's source the last part, and no kind, which is always shown beside the name."""
    return model_name(model.name) if model.kind == "teacher" else model.name.removesuffix(" (untrained)")


def label_of(model_id: str, models: Models) -> str:
    """Kind and name, or the id alone."""
    kind = kind_of(model_id, models)
    return f"{KINDS[kind]}: {name_of(model_id, models)}" if kind else model_id


def labelled(ids: Sequence[str], models: Models) -> list[tuple[str, str]]:
    """Label and id; those of one name are told apart by the end of the id."""
    labels = [label_of(one, models) for one in ids]
    times = Counter(labels)
    return [
        (label if times[label] == 1 else f"{label} · {one.partition('@')[0][-6:]}", one)
        for label, one in zip(labels, ids, strict=True)
    ]


def list_of_models(models: Sequence[ModelOut], chosen: Sequence[str]) -> list[tuple[str, str]]:
    """For a list to choose from: every model, and the checkpoints among `chosen`."""
    known = {model.id: model for model in models}
    return labelled([*known, *(one for one in dict.fromkeys(chosen) if checkpoint_id(one))], known)
