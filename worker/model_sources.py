"""Where a model's weights are and how it is asked, by its row.

Knows rows of models and jobs, and the artifact store. Does not load anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Session

from app.core.compare_schemas import Template, TemplateChoice
from app.core.db import jobs, models
from app.core.db.tables import Model
from app.core.errors import NotFound
from app.core.job_config import DistillConfig, ScrgConfig
from app.core.storage import ArtifactStore

if TYPE_CHECKING:
    from worker.distill.models import ModelSource


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A model to ask. `template` None leaves the choice to its tokenizer; `weights_sha256` None accepts any weights."""

    model_id: str
    kind: models.ModelKind
    source: ModelSource
    template: Template | None
    weights_sha256: str | None
    scrg: ScrgConfig


def resolve(
    session: Session, store: ArtifactStore, model_ids: Sequence[str], *, template: TemplateChoice
) -> list[Asked]:
    """The models in their order. With `auto` a student, trained or not, is asked with its job's template; a teacher
    with the one that all students beside it share (so that both continue the same text), else with its own.

    Raises NotFound for a row, a job or files that are gone.
    """
    rows = [models.get(session, model_id) for model_id in model_ids]
    configs = [_config(session, row) for row in rows]
    trained_with = [config.get("data", {}).get("template", "chat") if config else None for config in configs]
    shared = set(filter(None, trained_with))
    return [
        Asked(
            model_id=row.id,
            kind=row.kind,  # type: ignore[arg-type]
            source=_source(store, row, config),
            template=(own or (shared.copy().pop() if len(shared) == 1 else None)) if template == "auto" else template,
            weights_sha256=row.weights_sha256 or None,
            scrg=ScrgConfig.model_validate(config.get("scrg", {}) if config else {}),
        )
        for row, config, own in zip(rows, configs, trained_with, strict=True)
    ]


def _config(session: Session, model: Model) -> Mapping[str, Any] | None:
    """The job's description as stored; a teacher has none. A student's card has it too, should the job be gone."""
    if model.kind == "teacher":
        return None
    if model.card.get("config"):
        return model.card["config"]
    assert model.job_id is not None
    return jobs.get(session, model.job_id).config


def _source(store: ArtifactStore, model: Model, config: Mapping[str, Any] | None) -> ModelSource:
    """A teacher is where its row says, a student (and a teacher that a job tuned) in the store; an untrained one is
    rebuilt from its job."""
    from worker.distill.models import TrainedModel, UntrainedStudent

    if model.kind == "teacher" and model.job_id is None:
        return TrainedModel(model.source)
    if model.kind == "untrained":
        description = DistillConfig.model_validate(config)
        return UntrainedStudent(teacher=description.teacher.model, student=description.student)
    try:
        return TrainedModel(str(store.local_path(model.source)))
    except FileNotFoundError as error:
        raise NotFound(f"the files of {model.id} are not in the artifact store any more") from error
