"""Whether what somebody wants to ask is there: a model, or a checkpoint of a job.

Knows the database and the artifact store. Does not keep anything from being removed afterwards; a worker looks again.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.core import stored_checkpoints
from app.core.db import jobs, models
from app.core.errors import InvalidRequest, NotFound
from app.core.model_ids import checkpoint_id
from app.deps import Services


def require(services: Services, model_ids: Sequence[str], *, field: str | None = None) -> None:
    """Raises InvalidRequest naming the first id that is nobody's."""
    for i, model_id in enumerate(model_ids):
        try:
            require_one(services, model_id)
        except NotFound as error:
            list_at = "/v1/jobs/{id}/checkpoints" if checkpoint_id(model_id) else "/v1/models"
            raise InvalidRequest(f"{error.message}; see GET {list_at}", field or f"model_ids.{i}") from error


def require_one(services: Services, model_id: str) -> None:
    """Raises NotFound."""
    checkpoint = checkpoint_id(model_id)
    with services.readers.begin() as session:
        if checkpoint is None:
            models.get(session, model_id)
            return
        jobs.get(session, checkpoint.job_id)
    stored_checkpoints.find(services.store, checkpoint)
