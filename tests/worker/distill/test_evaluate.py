"""Held-out numbers against plain formulas."""

from __future__ import annotations

import pytest
import torch

from app.core.loss_config import ForwardKlLoss, SftLoss
from tests.worker.distill.conftest import PROMPTS
from worker.distill.data import Row
from worker.distill.evaluate import (
    Answered,
    HeldOut,
    answer_metrics,
    distinct,
    divergence,
    evaluate,
    response_states,
    rouge_l,
)
from worker.distill.models import SplitModel
from worker.distill.objective import Objective
from worker.distill.types import TokenSequence, make_batch

SEQUENCES = [TokenSequence(prompt, (30 + i, 40, 50 + i, 2), is_ground_truth=True) for i, prompt in enumerate(PROMPTS)]


@pytest.fixture
def held_out(teacher_lm: SplitModel) -> HeldOut:
    rows = [Row(i, "", s.prompt_ids, None, s.response_ids) for i, s in enumerate(SEQUENCES)]
    batches = [make_batch(SEQUENCES[:3], pad_id=0), make_batch(SEQUENCES[3:], pad_id=0)]
    return HeldOut.prepare(rows, batches, teacher=teacher_lm)


def plain_log_probs(lm: SplitModel) -> torch.Tensor:
    """[N, V] over all response tokens, one unpadded sequence at a time."""
    parts = []
    for sequence in SEQUENCES:
        with torch.no_grad():
            logits_TV = lm.model(input_ids=torch.tensor([[*sequence.prompt_ids, *sequence.response_ids]])).logits[0]
        parts.append(logits_TV[len(sequence.prompt_ids) - 1 : -1].double().log_softmax(-1))
    return torch.cat(parts)


def test_divergences_and_agreement(teacher_lm: SplitModel, student_lm: SplitModel, held_out: HeldOut) -> None:
    log_p, log_q = plain_log_probs(teacher_lm), plain_log_probs(student_lm)
    states = [response_states(student_lm, batch) for batch in held_out.batches]
    metrics = divergence(teacher_lm, student_lm, held_out, states)
    assert metrics["eval/kl_ts"] == pytest.approx(float((log_p.exp() * (log_p - log_q)).sum(-1).mean()), rel=1e-4)
    assert metrics["eval/kl_st"] == pytest.approx(float((log_q.exp() * (log_q - log_p)).sum(-1).mean()), rel=1e-4)
    assert metrics["eval/top1_agreement"] == float((log_p.argmax(-1) == log_q.argmax(-1)).double().mean())
    same = divergence(teacher_lm, teacher_lm, held_out, held_out.teacher_hidden)
    assert same["eval/kl_ts"] == pytest.approx(0, abs=1e-6)
    assert same["eval/top1_agreement"] == 1


@pytest.mark.parametrize("chunk", [None, 5])
def test_the_dev_loss_is_the_training_objective(
    teacher_lm: SplitModel, student_lm: SplitModel, held_out: HeldOut, chunk: int | None
) -> None:
    objective = Objective([SftLoss(weight=2.0), ForwardKlLoss()])
    metrics = evaluate(teacher_lm, student_lm, held_out, objective=objective, chunk_positions=chunk)
    log_p, log_q = plain_log_probs(teacher_lm), plain_log_probs(student_lm)
    labels = torch.tensor([token for sequence in SEQUENCES for token in sequence.response_ids])
    sft = -float(log_q.gather(1, labels[:, None]).mean())
    kl = float((log_p.exp() * (log_p - log_q)).sum(-1).mean())
    assert metrics["eval/loss/sft"] == pytest.approx(sft, rel=1e-4)
    assert metrics["eval/loss"] == pytest.approx(2 * sft + kl, rel=1e-4)
    assert "eval/loss/total" not in metrics


def answered(text: str, reference: str | None = None, ids: tuple[int, ...] = (5, 2)) -> Answered:
    return Answered(Row(1, "", (1,), reference, None), ids, text)


def test_rouge_l_with_stemming_ignores_rows_without_a_reference() -> None:
    # "dogs run" stems to "dog run": longest common subsequence 2 of 2 and 2 of 4 words, F = 2/3
    assert rouge_l([answered("dogs run", "the dog runs fast"), answered("x")]) == pytest.approx(2 / 3)
    assert rouge_l([answered("x")]) == 0.0


def test_answers_are_described_by_variety_length_and_end() -> None:
    answers = [answered("a b a b", "a b a b", ids=(7, 8, 7, 8)), answered("a c", "no", ids=(7, 9, 2))]
    metrics = answer_metrics(answers, eos_ids=frozenset({2}))
    assert metrics == {
        "eval/rouge_l": pytest.approx(0.5),
        "eval/distinct_1": pytest.approx(3 / 6),  # a, b, c of six words
        "eval/distinct_2": pytest.approx(3 / 4),  # ab, ba, ac of ab, ba, ab, ac
        "eval/answer_tokens": 3.5,
        "eval/ended": 0.5,
    }
    assert distinct([answered("")], 1) == 0.0
