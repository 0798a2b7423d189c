"""Own samples against plain formulas, and the exposure-bias ratio by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from app.core.prompt_encoder import PromptEncoder
from tests.tiny_models import make_tokenizer
from tests.worker.distill.conftest import PROMPTS
from worker.distill.answers import Answered, answer_rows
from worker.distill.data import Row
from worker.distill.exposure import common_length, excess_accumulated_error, own_sample_metrics
from worker.distill.generate import SamplingSettings
from worker.distill.models import SplitModel

ROWS = [Row(i, "", prompt, None, None) for i, prompt in enumerate(PROMPTS)]


def samples(lm: SplitModel, settings: SamplingSettings, seed: int = 0) -> list[Answered]:
    encoder = PromptEncoder(make_tokenizer(), template="chat", eos_ids=frozenset({2}))
    return answer_rows(lm, ROWS, encoder=encoder, settings=settings, batch_size=3, seed=seed)


def plain_kl(p: SplitModel, q: SplitModel, along: list[Answered]) -> list[torch.Tensor]:
    """KL(p || q) [T] along each sample, one unpadded sequence at a time, in double precision."""
    found = []
    for sample in along:
        ids = torch.tensor([[*sample.row.prompt_ids, *sample.response_ids]])
        start = len(sample.row.prompt_ids) - 1
        with torch.no_grad():
            log_p, log_q = (lm.model(input_ids=ids).logits[0, start:-1].double().log_softmax(-1) for lm in (p, q))
        found.append((log_p.exp() * (log_p - log_q)).sum(-1))
    return found


def test_divergences_on_own_samples_are_those_of_plain_passes(
    teacher_lm: SplitModel, student_lm: SplitModel, settings: SamplingSettings
) -> None:
    own, of_teacher = samples(student_lm, settings), samples(teacher_lm, settings)
    metrics = own_sample_metrics(
        teacher_lm, student_lm, student_samples=own, teacher_samples=of_teacher, batch_size=3, pad_id=0
    )
    kl_ts, kl_st = plain_kl(teacher_lm, student_lm, own), plain_kl(student_lm, teacher_lm, own)
    assert metrics["eval/kl_ts_samples"] == pytest.approx(float(torch.cat(kl_ts).mean()), rel=1e-4)
    assert metrics["eval/kl_st_samples"] == pytest.approx(float(torch.cat(kl_st).mean()), rel=1e-4)
    oracle = plain_kl(teacher_lm, student_lm, of_teacher)
    steps = common_length(kl_ts, oracle)
    assert metrics["eval/ex_acc_err_tokens"] == steps
    expected = excess_accumulated_error(kl_ts, oracle, steps=steps)
    assert metrics["eval/ex_acc_err"] == pytest.approx(expected, rel=1e-3)


def test_the_excess_by_hand() -> None:
    own = [torch.tensor([1.0, 4.0]), torch.tensor([3.0])]
    oracle = [torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.0])]
    # steps' means: own (1 + 3) / 2 = 2, then 4; oracle 1, then (2 + 0) / 2 = 1
    assert excess_accumulated_error(own, oracle, steps=1) == pytest.approx((2 - 1) / 1)
    assert excess_accumulated_error(own, oracle, steps=2) == pytest.approx((6 - 2) / 2)
    assert excess_accumulated_error(oracle, oracle, steps=2) == 0
    assert excess_accumulated_error(own, [torch.zeros(2)], steps=2) is None  # nothing to compare with


def test_the_length_is_one_that_half_of_both_kinds_reach() -> None:
    def lengths(*tokens: int) -> list[torch.Tensor]:
        return [torch.zeros(n) for n in tokens]

    assert common_length(lengths(9, 1, 5, 3), lengths(9, 9)) == 5  # two of four reach 5
    assert common_length(lengths(9, 9), lengths(2, 4, 6)) == 4  # two of three reach 4
    assert common_length(lengths(7), lengths(3)) == 3


def test_a_student_that_is_its_teacher_has_no_divergence_and_no_ratio_of_nothing(
    teacher_lm: SplitModel, settings: SamplingSettings
) -> None:
    own = samples(teacher_lm, settings)
    metrics = own_sample_metrics(
        teacher_lm, teacher_lm, student_samples=own, teacher_samples=own, batch_size=4, pad_id=0
    )
    assert metrics == {"eval/kl_ts_samples": 0, "eval/kl_st_samples": 0}


def test_neither_padding_nor_batches_change_the_numbers(
    teacher_lm: SplitModel, student_lm: SplitModel, settings: SamplingSettings
) -> None:
    own, of_teacher = (samples(lm, replace(settings, max_new_tokens=6)) for lm in (student_lm, teacher_lm))
    one, other = (
        own_sample_metrics(
            teacher_lm, student_lm, student_samples=own, teacher_samples=of_teacher, batch_size=size, pad_id=pad
        )
        for size, pad in ((1, 0), (4, 9))
    )
    assert one == pytest.approx(other, rel=1e-4)
