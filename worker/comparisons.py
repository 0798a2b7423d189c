"""One claimed comparison: the same prompt, answered by each model in turn with the same settings.

Knows where a model's weights are, by its row. Does not know Celery or how a model answers (`worker/distill/compare`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog
from sqlalchemy.orm import Session, sessionmaker

from app.core.db import comparisons, jobs, models
from app.core.db.tables import Model
from app.core.errors import AttemptLost, NotFound
from app.core.events import Event
from app.core.job_config import DistillConfig
from app.core.schemas import Answer, ComparisonIn
from app.core.storage import ArtifactStore
from worker.endings import ending
from worker.recorder import PATIENCE_S, Recorder, in_transaction

if TYPE_CHECKING:
    from worker.distill.compare import ModelCache
    from worker.distill.models import ModelSource

log = structlog.stdlib.get_logger(__name__)

MEMORY_CURE = "compare fewer models at once, or lower max_new_tokens"


@dataclass(frozen=True, kw_only=True)
class ComparisonRunner:
    """Runs claimed comparisons. `cache()` gives what keeps models between them; it is called once something waits,
    since torch, which it needs, takes seconds to import."""

    sessions: sessionmaker[Session]
    store: ArtifactStore
    cache: Callable[[], ModelCache]
    heartbeat_s: float
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    patience_s: float = PATIENCE_S

    def run_next(self, *, worker: str) -> str | None:
        """Claims the oldest queued comparison and answers it; its id, or None when nothing was queued."""
        with self.sessions.begin() as session:
            claim = comparisons.claim_next(session, worker=worker, now=self.clock())
        if claim is None:
            return None
        with structlog.contextvars.bound_contextvars(comparison_id=claim.comparison_id, attempt=claim.attempt):
            log.info("comparison claimed")
            self._run(claim)
        return claim.comparison_id

    def _run(self, claim: comparisons.ComparisonClaim) -> None:
        try:
            request = ComparisonIn.model_validate(claim.request)
            with self._recorder(claim):
                answers = [self._answer(model_id, request) for model_id in request.model_ids]
            self._finish(claim, answers=answers)
        except AttemptLost as lost:
            log.warning("claim lost, nothing is written", reason=str(lost))
        except Exception as error:
            end = ending(error, memory_cure=MEMORY_CURE, log_name="comparing")
            log.warning("comparison ended", code=end.code, exc_info=error)
            self._finish(claim, code=end.code, message=end.message)

    def _recorder(self, claim: comparisons.ComparisonClaim) -> Recorder:
        def write(session: Session, _events: Sequence[Event]) -> bool:
            comparisons.heartbeat(session, comparison_id=claim.comparison_id, attempt=claim.attempt, now=self.clock())
            return False

        return Recorder(sessions=self.sessions, write=write, heartbeat_s=self.heartbeat_s, patience_s=self.patience_s)

    def _answer(self, model_id: str, request: ComparisonIn) -> Answer:
        from worker.distill.compare import answer

        with self.sessions.begin() as session:
            source = self._source(session, models.get(session, model_id))
        said = answer(
            self.cache(),
            source,
            messages=[message.model_dump() for message in request.messages],
            max_new_tokens=request.max_new_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            seed=request.seed,
        )
        return Answer(
            model_id=model_id,
            text=said.text,
            tokens=said.tokens,
            seconds=said.seconds,
            tokens_per_s=said.tokens / said.seconds if said.seconds > 0 else 0.0,
            finished=said.finished,
            parameters=said.parameters,
            weights_sha256=said.weights_sha256,
        )

    def _source(self, session: Session, model: Model) -> ModelSource:
        """A teacher is where its row says, a student in the store; an untrained one is rebuilt from its job."""
        from worker.distill.models import TrainedModel, UntrainedStudent

        if model.kind == "teacher":
            return TrainedModel(model.source)
        if model.kind == "untrained":
            assert model.job_id is not None
            config = DistillConfig.model_validate(jobs.get(session, model.job_id).config)
            return UntrainedStudent(teacher=config.teacher.model, student=config.student)
        try:
            return TrainedModel(str(self.store.local_path(model.source)))
        except FileNotFoundError as error:
            raise NotFound(f"the files of {model.id} are not in the artifact store any more") from error

    def _finish(
        self,
        claim: comparisons.ComparisonClaim,
        *,
        answers: Sequence[Answer] = (),
        code: str | None = None,
        message: str | None = None,
    ) -> None:
        def write(session: Session) -> None:
            comparisons.finish(
                session,
                comparison_id=claim.comparison_id,
                attempt=claim.attempt,
                now=self.clock(),
                answers=answers,
                code=code,
                message=message,
            )

        try:
            in_transaction(self.sessions, write, patience_s=self.patience_s)
        except AttemptLost as lost:
            log.warning("claim lost, nothing is written", reason=str(lost))
