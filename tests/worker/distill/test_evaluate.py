"""Held-out numbers against plain formulas."""

from __future__ import annotations

import pytest
import torch

from app.core.loss_config import DacKlLoss, ForwardKlLoss, SftLoss
from tests.worker.distill.conftest import PROMPTS
from worker.distill.data import Row
from worker.distill.evaluate import HeldOut, divergence, evaluate, position_divergence, response_states
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


def test_divergence_is_that_of_each_position_however_it_is_sliced(
    teacher_lm: SplitModel, student_lm: SplitModel, held_out: HeldOut, monkeypatch: pytest.MonkeyPatch
) -> None:
    (teacher_ND, *_), student_ND = held_out.teacher_hidden, response_states(student_lm, held_out.batches[0])
    whole = position_divergence(teacher_lm, student_lm, teacher_ND, student_ND)
    log_p, log_q = (plain_log_probs(lm)[: len(teacher_ND)] for lm in (teacher_lm, student_lm))
    torch.testing.assert_close(whole.kl_ts_N.double(), (log_p.exp() * (log_p - log_q)).sum(-1), rtol=1e-3, atol=1e-4)
    monkeypatch.setattr("worker.distill.evaluate.CHUNK_LOGITS", 5 * 320)
    sliced = position_divergence(teacher_lm, student_lm, teacher_ND, student_ND)
    assert len(whole.kl_ts_N) % 5  # the last slice is a short one
    for name, values_N in vars(whole).items():
        torch.testing.assert_close(getattr(sliced, name), values_N)


def test_the_dev_loss_of_a_learned_mask_is_not_drawn_and_its_terms_add_up(
    teacher_lm: SplitModel, student_lm: SplitModel, held_out: HeldOut
) -> None:
    torch.manual_seed(0)
    objective = Objective([SftLoss(weight=0.5), DacKlLoss(weight=3.0, top_k=16, hidden_size=8)])
    once, again = (
        evaluate(teacher_lm, student_lm, held_out, objective=objective, chunk_positions=None) for _ in range(2)
    )
    assert once == again
    assert once["eval/loss"] == pytest.approx(0.5 * once["eval/loss/sft"] + 3 * once["eval/loss/dac_kl"], rel=1e-5)
