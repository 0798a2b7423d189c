"""One claimed piece of a comparing worker's work: a conversation answered by several models, or an answer read by two.

Knows how partial answers, stops and endings are written. Does not know Celery, where weights are (`model_sources`) or
how a model answers (`worker/distill/compare`, `worker/distill/reading`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import structlog
from sqlalchemy.orm import Session, sessionmaker

from app.core.compare_schemas import Answer, ComparisonIn, DivergenceIn
from app.core.db import comparisons, models
from app.core.errors import AttemptLost, Cancelled, Conflict
from app.core.events import Event
from app.core.storage import ArtifactStore
from worker import model_sources
from worker.endings import ending
from worker.recorder import PATIENCE_S, Recorder, in_transaction

if TYPE_CHECKING:
    from worker.distill.compare import AnswerStream, LoadedModel, ModelCache

log = structlog.stdlib.get_logger(__name__)

MEMORY_CURE = "compare fewer models at once, or lower max_new_tokens"
LOOK_S = 0.05  # how often a running comparison looks whether somebody pressed stop
WRITE_S = 0.3  # partial answers are written no oftener


@dataclass
class Live:
    """What is written so far, between the thread that writes answers and the one that stores them."""

    answers: Sequence[Answer] = ()
    stored: Sequence[Answer] = ()
    stored_at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, kw_only=True)
class ComparisonRunner:
    """Runs claimed rows. `cache()` gives what keeps models between them; it is called once something waits, since
    torch, which it needs, takes seconds to import."""

    sessions: sessionmaker[Session]
    store: ArtifactStore
    cache: Callable[[], ModelCache]
    heartbeat_s: float
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    patience_s: float = PATIENCE_S

    def run_next(self, *, worker: str) -> str | None:
        """Claims the first queued row and does it; its id, or None when nothing was queued."""
        with self.sessions.begin() as session:
            claim = comparisons.claim_next(session, worker=worker, now=self.clock())
        if claim is None:
            return None
        with structlog.contextvars.bound_contextvars(comparison_id=claim.comparison_id, attempt=claim.attempt):
            log.info("comparison claimed", origin=claim.origin)
            self._run(claim)
        return claim.comparison_id

    def _run(self, claim: comparisons.ComparisonClaim) -> None:
        try:
            outcome = self._read(claim) if claim.origin == "divergence" else self._answer(claim)
            self._finish(claim, **outcome)
        except AttemptLost as lost:
            log.warning("claim lost, nothing is written", reason=str(lost))
        except Exception as error:
            end = ending(error, memory_cure=MEMORY_CURE, log_name="comparing")
            log.warning("comparison ended", code=end.code, exc_info=error)
            self._finish(claim, status=end.status, code=end.code, message=end.message if end.code else None)

    # --- answering ------------------------------------------------------------------------------------------

    def _answer(self, claim: comparisons.ComparisonClaim) -> dict[str, Any]:
        """What `finish` stores: every model's answer to the same messages, written at the same time."""
        request = ComparisonIn.model_validate(claim.request)
        live = Live()
        with self._recorder(claim, live) as recorder:
            from worker.distill.compare import write_together  # a busy machine may take a lease for it: say we live

            asked = self._resolve(request)
            loaded = [self._load(one) for one in asked]
            streams = [self._stream(claim, request, one, model) for one, model in zip(asked, loaded, strict=True)]
            told_at = time.monotonic()

            def told() -> None:
                nonlocal told_at
                if time.monotonic() - told_at >= WRITE_S:
                    live.answers, told_at = _answers(asked, streams), time.monotonic()

            write_together(streams, should_stop=lambda: bool(recorder.should_stop()), told=told)
            answers = _answers(asked, streams)
            scores = _scores(claim, asked, loaded, streams) if claim.origin == "batch" else None
        stopped = any(answer.finish == "cancelled" for answer in answers)
        return {
            "status": "cancelled" if stopped else "succeeded",
            "answers": answers,
            "token_ids": {one.model_id: stream.so_far().token_ids for one, stream in zip(asked, streams, strict=True)},
            "result": scores and {**claim.result, "scores": scores},
        }

    def _resolve(self, request: ComparisonIn) -> list[model_sources.Asked]:
        with self.sessions.begin() as session:
            wanted, template = request.model_ids, request.template
            return model_sources.resolve(session, self.store, wanted, template=template, field="model_ids")

    def _load(self, asked: model_sources.Asked) -> LoadedModel:
        """The weights that the model's row speaks of, or none: a pane never shows another model's."""
        loaded = self.cache().get(asked.source)
        if asked.weights_sha256 not in (None, loaded.weights_sha256):
            raise Conflict(
                f"the weights of {asked.model_id} are not those its job stored ({asked.weights_sha256[:10]}…): "
                f"the files have {loaded.weights_sha256[:10]}…"
            )
        return loaded

    def _stream(
        self,
        claim: comparisons.ComparisonClaim,
        request: ComparisonIn,
        asked: model_sources.Asked,
        loaded: LoadedModel,
    ) -> AnswerStream:
        from worker.distill.compare import AnswerStream

        return AnswerStream(
            loaded,
            messages=_conversation(claim, request, asked.model_id),
            template=asked.template,
            max_new_tokens=request.max_new_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            seed=request.seed,
        )

    # --- reading --------------------------------------------------------------------------------------------

    def _read(self, claim: comparisons.ComparisonClaim) -> dict[str, Any]:
        """What `finish` stores: one answer, scored by the two models of the request."""
        request = DivergenceIn.model_validate(claim.request)
        assert claim.parent_id is not None
        with self.sessions.begin() as session:
            parent = comparisons.get(session, claim.parent_id)
        asked_for = ComparisonIn.model_validate(parent.request)
        with self._recorder(claim, Live()) as recorder:
            from worker.readings import divergence

            with self.sessions.begin() as session:
                among = list(dict.fromkeys([*asked_for.model_ids, request.teacher_id, request.student_id]))
                asked = model_sources.resolve(session, self.store, among, template=asked_for.template)
            by_id = {one.model_id: one for one in asked}
            author, teacher, student = (by_id[one] for one in (request.of, request.teacher_id, request.student_id))
            loaded = {one.model_id: self._load(one) for one in (author, teacher, student)}
            _require_same_weights(parent, loaded)
            found = divergence(
                author=loaded[author.model_id],
                template=author.template,
                messages=_conversation(parent, asked_for, request.of),
                answer_ids=parent.token_ids[request.of],
                teacher=loaded[teacher.model_id],
                student=loaded[student.model_id],
                scrg=student.scrg,
            )
            if recorder.should_stop():
                raise Cancelled("stopped")
        return {"result": found.model_dump(mode="json")}

    # --- writing down ---------------------------------------------------------------------------------------

    def _recorder(self, claim: comparisons.ComparisonClaim, live: Live) -> Recorder:
        """Looks often whether to stop; writes seldom, and only what is new."""
        which: dict[str, Any] = {"comparison_id": claim.comparison_id, "attempt": claim.attempt}

        def write(session: Session, _events: Sequence[Event], _num_stored: int) -> bool:
            answers, waited_s = live.answers, time.monotonic() - live.stored_at
            # A heartbeat counts as a write: were it the oftener of the two, no answer would ever be due.
            if answers is not live.stored and waited_s >= min(WRITE_S, self.heartbeat_s):
                live.stored, live.stored_at = answers, time.monotonic()
                stop = comparisons.progress(session, **which, now=self.clock(), answers=answers)
            elif waited_s >= self.heartbeat_s:
                live.stored_at = time.monotonic()
                stop = comparisons.heartbeat(session, **which, now=self.clock())
            else:
                stop = comparisons.wants_stop(session, **which)
            return stop

        look_s = min(LOOK_S, self.heartbeat_s)
        return Recorder(sessions=self.sessions, write=write, heartbeat_s=look_s, patience_s=self.patience_s)

    def _finish(self, claim: comparisons.ComparisonClaim, **values: Any) -> None:
        def write(session: Session) -> None:
            comparisons.finish(
                session, comparison_id=claim.comparison_id, attempt=claim.attempt, now=self.clock(), **values
            )
            answers: Sequence[Answer] = values.get("answers") or ()
            models.note_speed(session, {one.model_id: one.tokens_per_s for one in answers if one.tokens_per_s})

        try:
            in_transaction(self.sessions, write, patience_s=self.patience_s)
        except AttemptLost as lost:
            log.warning("claim lost, nothing is written", reason=str(lost))


def _require_same_weights(parent: Any, loaded: Mapping[str, LoadedModel]) -> None:
    """What is read now must be what answered: a job that is started anew writes other checkpoints of the same steps.
    Raises Conflict."""
    for answer in parent.answers:
        now = loaded.get(answer["model_id"])
        if now is not None and answer["weights_sha256"] not in (None, now.weights_sha256):
            raise Conflict(
                f"{answer['model_id']} has other weights ({now.weights_sha256[:10]}…) than when it answered "
                f"({answer['weights_sha256'][:10]}…): compare again, then read the new answer"
            )


def _conversation(row: Any, request: ComparisonIn, model_id: str) -> list[dict[str, str]]:
    """What the model is asked: its own earlier turns, then the new messages. `row` has a `history`."""
    return [*row.history.get(model_id, ()), *(message.model_dump() for message in request.messages)]


def _answers(asked: Sequence[model_sources.Asked], streams: Sequence[AnswerStream]) -> list[Answer]:
    return [_as_answer(one.model_id, stream) for one, stream in zip(asked, streams, strict=True)]


def _as_answer(model_id: str, stream: AnswerStream) -> Answer:
    said = stream.so_far()
    return Answer(
        model_id=model_id,
        text=said.text,
        tokens=len(said.token_ids),
        seconds=said.seconds,
        tokens_per_s=said.tokens_per_s,
        finished=said.finish == "stop",
        parameters=said.parameters,
        weights_sha256=said.weights_sha256,
        first_token_s=said.first_token_s,
        finish=said.finish,
        template=said.template,
        prompt_tokens=len(stream.prompt_ids),
    )


def _scores(
    claim: comparisons.ComparisonClaim,
    asked: Sequence[model_sources.Asked],
    loaded: Sequence[LoadedModel],
    streams: Sequence[AnswerStream],
) -> list[dict[str, Any]]:
    """A batch row's numbers; the first teacher among the models is the one that the others are measured against."""
    from worker.readings import row_score

    teacher = next((model for one, model in zip(asked, loaded, strict=True) if one.kind == "teacher"), None)
    scores = []
    for one, model, stream in zip(asked, loaded, streams, strict=True):
        measured = teacher if model is not teacher else None
        score = row_score(one.model_id, stream, model, teacher=measured, reference=claim.result.get("reference"))
        scores.append(score.model_dump(mode="json"))
    return scores
