"""What a student writes by itself, measured against references: ROUGE-L, exact match, variety, length, ending.

Knows prompts, answers and their text. Does not know the teacher: what it thinks of a student's samples is measured in
`exposure.py`.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from nltk import ngrams
from rouge_score.rouge_scorer import RougeScorer

from app.core.prompt_encoder import PromptEncoder
from worker.distill.data import Row
from worker.distill.generate import SamplingSettings
from worker.distill.models import SplitModel
from worker.distill.responses import write_responses


@dataclass(frozen=True)
class Answered:
    """A held-out prompt with an answer to it, as ids and as text."""

    row: Row
    response_ids: tuple[int, ...]
    text: str


def answer_rows(
    lm: SplitModel,
    rows: Sequence[Row],
    *,
    encoder: PromptEncoder,
    settings: SamplingSettings,
    batch_size: int,
    seed: int = 0,
) -> list[Answered]:
    """`lm`'s answers, in the order of `rows`.

    The random numbers come from `seed` alone, and no others are touched; which row gets which depends on `batch_size`.
    """
    answers = dict(
        write_responses(
            lm,
            [row.prompt_ids for row in rows],
            settings=settings,
            batch_size=batch_size,
            generator=torch.Generator().manual_seed(seed),
        )
    )
    return [Answered(row, answers[i], encoder.text(answers[i])) for i, row in enumerate(rows)]


def answer_metrics(
    answers: Sequence[Answered], *, eos_ids: frozenset[int], exact_match: bool = False
) -> dict[str, float]:
    """Of at least one answer: `eval/rouge_l`, `eval/exact_match` if asked for, `eval/distinct_1` and `_2`,
    `eval/answer_tokens` (mean length, the end token included) and `eval/ended` (share that ended by itself).

    What cannot be measured (no reference, no n-gram) is absent.
    """
    metrics = {
        "eval/rouge_l": rouge_l(answers),
        "eval/exact_match": exact_matches(answers) if exact_match else None,
        "eval/distinct_1": distinct(answers, 1),
        "eval/distinct_2": distinct(answers, 2),
        "eval/answer_tokens": sum(len(a.response_ids) for a in answers) / len(answers),
        "eval/ended": sum(a.response_ids[-1] in eos_ids for a in answers) / len(answers),
    }
    return {name: value for name, value in metrics.items() if value is not None}


def rouge_l(answers: Sequence[Answered]) -> float | None:
    """Mean ROUGE-L F-measure (0 to 1) with stemming, against the best of a row's references.

    Lin, 2004, as `rouge_score` computes it. Rows without a reference do not count; None when no row has one.
    """
    scorer = RougeScorer(["rougeL"], use_stemmer=True)
    scores = [
        max(scorer.score(reference, answer.text)["rougeL"].fmeasure for reference in answer.row.references)
        for answer in answers
        if answer.row.references
    ]
    return statistics.fmean(scores) if scores else None


def exact_matches(answers: Sequence[Answered]) -> float | None:
    """Share of answers that equal one of their row's references.

    [ours] Compared as text without special tokens, with outer white space removed and every inner run of white space
    as one space; case and punctuation count. Rows without a reference do not count; None when no row has one.
    """
    hits = [
        _plain(answer.text) in {_plain(reference) for reference in answer.row.references}
        for answer in answers
        if answer.row.references
    ]
    return statistics.fmean(hits) if hits else None


def distinct(answers: Sequence[Answered], n: int) -> float | None:
    """Distinct n-grams of words over all n-grams of all answers (Li et al., 2016, arXiv 1510.03055): low means
    repetitive. It falls with the number of answers too, so compare equal numbers only. None without an n-gram."""
    grams = [gram for answer in answers for gram in ngrams(answer.text.split(), n)]
    return len(set(grams)) / len(grams) if grams else None


def over_seeds(of_seeds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each metric's mean over sampling seeds under its own name, and their sample standard deviation as `<name>_std`.

    A metric that some seeds lack is averaged over the others; one value has no standard deviation.
    """
    found: dict[str, float] = {}
    for name in dict.fromkeys(name for metrics in of_seeds for name in metrics):
        values = [metrics[name] for metrics in of_seeds if name in metrics]
        found[name] = statistics.fmean(values)
        if len(values) > 1:
            found[f"{name}_std"] = statistics.stdev(values)
    return found


def _plain(text: str) -> str:
    return " ".join(text.split())
