"""Held-out quality of a student: KL to the teacher, agreement, the training objective itself, and ROUGE-L.

Knows held-out rows and the two models. Does not know when it is called or what is done with the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from nltk import ngrams
from rouge_score.rouge_scorer import RougeScorer
from torch import Tensor

from worker.distill.data import PromptEncoder, Row
from worker.distill.generate import SamplingSettings
from worker.distill.models import SplitModel
from worker.distill.objective import Objective
from worker.distill.responses import write_responses
from worker.distill.types import Batch

CHUNK_LOGITS = 2**25  # logits alive at once: 128 MiB per float32 tensor


@dataclass(frozen=True)
class Answered:
    """A held-out prompt with the student's answer, as ids and as text."""

    row: Row
    response_ids: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class HeldOut:
    """The held-out rows as batches, with the teacher's states for them, which never change: computed once."""

    rows: Sequence[Row]
    batches: Sequence[Batch]
    teacher_hidden: Sequence[Tensor]

    @classmethod
    @torch.no_grad()
    def prepare(cls, rows: Sequence[Row], batches: Sequence[Batch], *, teacher: SplitModel) -> HeldOut:
        return cls(rows, batches, [response_states(teacher, batch) for batch in batches])


def response_states(lm: SplitModel, batch: Batch) -> Tensor:
    """Hidden states [N, D] that predict the batch's response tokens, with gradient if the model has one."""
    hidden_BTD = lm.hidden(
        batch.input_ids_BT, attention_mask=batch.attention_mask_BT, position_ids=batch.position_ids_BT
    )
    return batch.predicting(hidden_BTD)


@torch.no_grad()
def divergence(
    teacher: SplitModel, student: SplitModel, held_out: HeldOut, states: Sequence[Tensor]
) -> dict[str, float]:
    """Mean KL(teacher || student), KL(student || teacher) in nats per token, and the share of positions whose most
    probable class agrees, over all held-out response tokens. Float32, in slices of positions."""
    step = max(1, CHUNK_LOGITS // teacher.vocabulary_size)
    sums = torch.zeros(3, dtype=torch.float64)
    positions = 0
    for teacher_ND, student_ND in zip(held_out.teacher_hidden, states, strict=True):
        positions += len(teacher_ND)
        for start in range(0, len(teacher_ND), step):
            log_p_NV = teacher.head(teacher_ND[start : start + step]).float().log_softmax(-1)
            log_q_NV = student.head(student_ND[start : start + step]).float().log_softmax(-1)
            difference_NV = log_p_NV - log_q_NV
            sums[0] += (log_p_NV.exp() * difference_NV).sum().item()
            sums[1] -= (log_q_NV.exp() * difference_NV).sum().item()
            sums[2] += (log_p_NV.argmax(-1) == log_q_NV.argmax(-1)).sum().item()
    kl_ts, kl_st, agreement = (sums / max(positions, 1)).tolist()
    return {"eval/kl_ts": kl_ts, "eval/kl_st": kl_st, "eval/top1_agreement": agreement}


def rouge_l(answers: Sequence[Answered]) -> float:
    """Mean ROUGE-L F-measure (0 to 1) with stemming; rows without a reference do not count."""
    scorer = RougeScorer(["rougeL"], use_stemmer=True)
    scores = [
        scorer.score(answer.row.reference, answer.text)["rougeL"].fmeasure for answer in answers if answer.row.reference
    ]
    return sum(scores) / len(scores) if scores else 0.0


def distinct(answers: Sequence[Answered], n: int) -> float:
    """Distinct n-grams of words over all n-grams of all answers (Li et al., 2016): low means repetitive."""
    grams = [gram for answer in answers for gram in ngrams(answer.text.split(), n)]
    return len(set(grams)) / len(grams) if grams else 0.0


def answer_metrics(answers: Sequence[Answered], *, eos_ids: frozenset[int]) -> dict[str, float]:
    """Of at least one answer: ROUGE-L, distinct-1 and -2, mean length in tokens, and the share that ended by itself."""
    return {
        "eval/rouge_l": rouge_l(answers),
        "eval/distinct_1": distinct(answers, 1),
        "eval/distinct_2": distinct(answers, 2),
        "eval/answer_tokens": sum(len(a.response_ids) for a in answers) / len(answers),
        "eval/ended": sum(a.response_ids[-1] in eos_ids for a in answers) / len(answers),
    }


def answer_rows(
    student: SplitModel, rows: Sequence[Row], *, encoder: PromptEncoder, settings: SamplingSettings, batch_size: int
) -> list[Answered]:
    """The student's answers, in the order of `rows`; the same random numbers at every call."""
    answers = dict(
        write_responses(
            student,
            [row.prompt_ids for row in rows],
            settings=settings,
            batch_size=batch_size,
            generator=torch.Generator().manual_seed(0),
        )
    )
    return [Answered(row, answers[i], encoder.text(answers[i])) for i, row in enumerate(rows)]


@torch.no_grad()
def evaluate(
    teacher: SplitModel, student: SplitModel, held_out: HeldOut, *, objective: Objective, chunk_positions: int | None
) -> dict[str, float]:
    """`eval/kl_ts`, `eval/kl_st`, `eval/top1_agreement`, and the training objective on held-out rows: `eval/loss`
    and one `eval/loss/<kind>` per term."""
    states = [response_states(student, batch) for batch in held_out.batches]
    metrics = divergence(teacher, student, held_out, states)
    counts = objective.counts(held_out.batches)
    totals: dict[str, float] = {}
    for batch, teacher_ND, student_ND in zip(held_out.batches, held_out.teacher_hidden, states, strict=True):
        part = objective.evaluate_from_hidden(
            student_hidden_ND=student_ND,
            student_head=student.head,
            teacher_hidden_ND=teacher_ND,
            teacher_head=teacher.head,
            batch=batch,
            counts=counts,
            vocabulary_size=teacher.vocabulary_size,
            chunk_positions=chunk_positions,
        )
        for name, value in part.items():
            totals[name] = totals.get(name, 0.0) + value
    metrics |= {f"eval/{name}": value for name, value in totals.items() if name.startswith("loss/")}
    metrics["eval/loss"] = metrics.pop("eval/loss/total")
    return metrics
