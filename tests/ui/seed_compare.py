"""What was asked, for `seed.py`: answers, a reading with hostile tokens, a blind comparison, an answered batch."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pydantic import BaseModel
from sqlalchemy.orm import Session

from app.core.compare_schemas import (
    Answer,
    BatchIn,
    Candidate,
    ChatMessage,
    ComparisonIn,
    Divergence,
    DivergenceIn,
    RowScore,
    TokenReading,
    Verdict,
)
from app.core.db import batches, comparisons, divergences

PIECES = ["<script>window.hacked = 1</script>", " ", "🦙", "", "שלום", "W" * 400, "\n"]
KL = [0.02, 0.3, 0.7, 1.4, 2.6, 0.0, 0.05]
ERROR = 3


def add_comparison(session: Session, ids: Sequence[str], second: str, now: datetime) -> str:
    """Three answers, the second (three times `second`) cut at its largest length."""
    request = ComparisonIn(model_ids=ids, messages=[ChatMessage(role="user", content="Why is the sky blue?")])
    created = comparisons.create(session, request=request, now=now)
    claim = comparisons.claim_next(session, worker="seed", now=now)
    assert claim is not None
    texts = ("Air scatters blue light more than red light.", second * 3, "The sky is blue because of light.")
    answers = [
        Answer(
            model_id=one,
            text=text,
            tokens=40,
            seconds=1.9,
            tokens_per_s=21.05,
            finished=index != 1,
            parameters=63_720_000 if index else 134_515_008,
            weights_sha256=f"{index}a" * 32,
        )
        for index, (one, text) in enumerate(zip(ids, texts, strict=True))
    ]
    comparisons.finish(
        session,
        comparison_id=created.id,
        attempt=claim.attempt,
        now=now,
        answers=answers,
        token_ids={one: [1, 2, 3] for one in ids},
    )
    return created.id


def reading() -> Divergence:
    """Tokens of every kind: markup, blanks, an emoji, a part of a character, right-to-left, one that is huge."""
    tokens = [
        TokenReading(
            text=piece,
            token=piece or "ðŁ",
            kl=kl,
            teacher_token="<b>sky</b>",
            mismatch=True,
            teacher_probability=0.25,
            student_probability=0.5,
            teacher_top=[Candidate(text=f"<i>t{k}</i>", probability=0.5 / (k + 1)) for k in range(5)],
            student_top=[Candidate(text=f"s{k}", probability=0.4 / (k + 1)) for k in range(5)],
        )
        for piece, kl in zip(PIECES, KL, strict=True)
    ]
    return Divergence(
        tokens=tokens,
        mean_kl=sum(KL) / len(KL),
        largest=4,
        error_position=ERROR,
        rule="the largest KL(teacher‖student) among the tokens that differ from the teacher's most probable token",
        text="".join(PIECES),
        teacher_weights_sha256="0a" * 32,
        student_weights_sha256="2a" * 32,
    )


def add_reading(session: Session, comparison_id: str, ids: Sequence[str], now: datetime) -> None:
    """Of the last model's answer, by the first and the last."""
    wanted = DivergenceIn(of=ids[-1], teacher_id=ids[0], student_id=ids[-1])
    row, _ = divergences.ask(session, comparison_id=comparison_id, request=wanted, now=now)
    claim = comparisons.claim_next(session, worker="seed", now=now)
    assert claim is not None
    assert claim.comparison_id == row.id
    comparisons.finish(
        session, comparison_id=row.id, attempt=claim.attempt, now=now, result=reading().model_dump(mode="json")
    )


def add_blind(session: Session, ids: Sequence[str], now: datetime) -> str:
    request = ComparisonIn(model_ids=ids, messages=[ChatMessage(role="user", content="Which is better?")], blind=True)
    made = comparisons.create(session, request=request, now=now)
    claim = comparisons.claim_next(session, worker="seed", now=now)
    assert claim is not None
    answers = [
        answer(one, f"said by {i}") for i, one in enumerate(ComparisonIn.model_validate(claim.request).model_ids)
    ]
    comparisons.finish(session, comparison_id=made.id, attempt=claim.attempt, now=now, answers=answers)
    return made.id


def add_batch(session: Session, dataset_id: str, ids: Sequence[str], text: str, now: datetime) -> str:
    """Three rows: two answered, the second worse; one that waits for ever, since no worker runs."""
    request = BatchIn(dataset_id=dataset_id, model_ids=ids, limit=3)
    rows = [batches.DataRow(messages=[{"role": "user", "content": f"row {i}"}], reference=text) for i in range(3)]
    batch, _ = batches.create(session, request=request, rows=rows, now=now)
    for badness in (1.0, 2.0):
        claim = comparisons.claim_next(session, worker="seed", now=now)
        assert claim is not None
        scores = [RowScore(model_id=ids[0], rouge_l=0.5, kl=None, tokens=7)]
        scores += [RowScore(model_id=one, rouge_l=0.5 / badness, kl=badness, tokens=7) for one in ids[1:]]
        verdicts = [Verdict(model_id=one, outcome="first") for one in ids[1:]]
        documents: dict[str, Sequence[BaseModel]] = {"scores": scores, "verdicts": verdicts}
        result = {name: [one.model_dump(mode="json") for one in found] for name, found in documents.items()}
        answers = [answer(one, text) for one in ids]
        comparisons.finish(
            session,
            comparison_id=claim.comparison_id,
            attempt=claim.attempt,
            now=now,
            answers=answers,
            result={**claim.result, **result},
        )
    return batch.id


def answer(model_id: str, text: str) -> Answer:
    return Answer(
        model_id=model_id,
        text=text,
        tokens=7,
        seconds=0.5,
        tokens_per_s=14.0,
        finished=True,
        parameters=1000,
        weights_sha256="3b" * 32,
        first_token_s=0.1,
        finish="stop",
        template="chat",
    )
