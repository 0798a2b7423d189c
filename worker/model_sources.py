"""Where the weights of what is asked are and how it is asked: a model by its row, a checkpoint by its job and step.

Knows rows of models and jobs, and the artifact store. Does not load anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy.orm import Session

from app.core import stored_checkpoints
from app.core.compare_schemas import Template, TemplateChoice
from app.core.db import jobs, models
from app.core.db.tables import Model
from app.core.errors import NotFound
from app.core.job_config import DistillConfig, ScrgConfig
from app.core.model_ids import CheckpointId, checkpoint_id
from app.core.storage import ArtifactStore

if TYPE_CHECKING:
    from worker.distill.models import ModelSource


Kind = models.ModelKind | Literal["checkpoint"]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A model to ask. `template` None leaves the choice to its tokenizer; `weights_sha256` None accepts any weights."""

    model_id: str
    kind: Kind
    source: ModelSource
    template: Template | None
    weights_sha256: str | None
    scrg: ScrgConfig


@dataclass(frozen=True, kw_only=True)
class _Known:
    """What is asked, by itself. A teacher has no `config`: the description of the job that it comes from, as stored."""

    kind: Kind
    config: Mapping[str, Any] | None
    source: ModelSource
    weights_sha256: str | None = None

    @property
    def trained_with(self) -> Template | None:
        return self.config.get("data", {}).get("template", "chat") if self.config else None


def resolve(
    session: Session,
    store: ArtifactStore,
    model_ids: Sequence[str],
    *,
    template: TemplateChoice,
    field: str | None = None,
) -> list[Asked]:
    """The models in their order. With `auto` a student, trained or not, is asked with its job's template; a teacher
    with the one that all students beside it share (so that both continue the same text), else with its own.

    Raises NotFound for a row, a job, files or a checkpoint that are gone; it names the place in `field`.
    """
    known = []
    for i, model_id in enumerate(model_ids):
        try:
            known.append(_known(session, store, model_id))
        except NotFound as error:
            raise NotFound(error.message, field and f"{field}.{i}") from error
    shared = {one.trained_with for one in known} - {None}
    common = next(iter(shared)) if len(shared) == 1 else None
    return [
        Asked(
            model_id=model_id,
            kind=one.kind,
            source=one.source,
            template=(one.trained_with or common) if template == "auto" else template,
            weights_sha256=one.weights_sha256,
            scrg=ScrgConfig.model_validate(one.config.get("scrg", {}) if one.config else {}),
        )
        for model_id, one in zip(model_ids, known, strict=True)
    ]


def _known(session: Session, store: ArtifactStore, model_id: str) -> _Known:
    checkpoint = checkpoint_id(model_id)
    if checkpoint is not None:
        config = jobs.get(session, checkpoint.job_id).config
        return _Known(kind="checkpoint", config=config, source=_checkpointed(store, checkpoint, config))
    row = models.get(session, model_id)
    of_job = _config(session, row)
    kind: models.ModelKind = row.kind  # type: ignore[assignment]
    source = _source(store, row, of_job)
    return _Known(kind=kind, config=of_job, source=source, weights_sha256=row.weights_sha256 or None)


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
        description = DistillConfig.stored(config)
        return UntrainedStudent(teacher=description.teacher.model, student=description.student)
    try:
        return TrainedModel(str(store.local_path(model.source)))
    except FileNotFoundError as error:
        raise NotFound(f"the files of {model.id} are not in the artifact store any more") from error


def _checkpointed(store: ArtifactStore, wanted: CheckpointId, config: Mapping[str, Any]) -> ModelSource:
    """The student's shape comes from its teacher, of a job that tuned it from the tuned one, which lies beside its
    checkpoints. Raises NotFound."""
    from worker.distill.models import CheckpointedStudent
    from worker.distill.training_state import WEIGHTS

    found = stored_checkpoints.find(store, wanted)
    description = DistillConfig.stored(config)
    tuned = f"{found.beside}/teacher"
    teacher = str(store.local_path(tuned)) if store.exists(tuned) else description.teacher.model
    try:
        weights = store.local_path(f"{found.key}/{WEIGHTS}")
    except FileNotFoundError as error:
        raise NotFound(f"the checkpoint {wanted} was removed just now; choose another one") from error
    return CheckpointedStudent(
        teacher=teacher,
        student=description.student,
        folder=str(weights.parent),
        sha256=found.manifest["files"][WEIGHTS]["sha256"],
    )
