"""Measures of answers against counting by hand."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from app.core.prompt_encoder import PromptEncoder
from tests.tiny_models import make_tokenizer
from tests.worker.distill.conftest import PROMPTS
from worker.distill.answers import (
    Answered,
    answer_metrics,
    answer_rows,
    distinct,
    exact_matches,
    over_seeds,
    rouge_l,
)
from worker.distill.data import Row
from worker.distill.generate import SamplingSettings
from worker.distill.models import SplitModel


def answered(text: str, *references: str, ids: tuple[int, ...] = (5, 2)) -> Answered:
    first, *more = references or (None,)
    return Answered(Row(1, "", (1,), first, None, tuple(more)), ids, text)


def test_rouge_l_with_stemming_ignores_rows_without_a_reference() -> None:
    # "dogs run" stems to "dog run": longest common subsequence 2 of 2 and 2 of 4 words, F = 2/3
    assert rouge_l([answered("dogs run", "the dog runs fast"), answered("x")]) == pytest.approx(2 / 3)
    assert rouge_l([answered("x")]) is None


def test_rouge_l_takes_the_best_reference_of_each_row() -> None:
    answers = [answered("dogs run", "cats", "the dog runs fast", "birds"), answered("a b", "a b", "c")]
    assert rouge_l(answers) == pytest.approx((2 / 3 + 1) / 2)


def test_exact_match_ignores_white_space_and_nothing_else() -> None:
    assert exact_matches([answered(" 12  May\n2024 ", "12 May 2024")]) == 1
    assert exact_matches([answered("12 may 2024", "12 May 2024"), answered("12 May 2024.", "12 May 2024")]) == 0
    assert exact_matches([answered("4", "four", "4"), answered("5", "four", "4"), answered("no reference")]) == 0.5
    assert exact_matches([answered("no reference")]) is None


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
    with_exact = answer_metrics(answers, eos_ids=frozenset({2}), exact_match=True)
    assert with_exact == metrics | {"eval/exact_match": 0.5}


def test_what_cannot_be_measured_is_absent_and_not_zero() -> None:
    assert distinct([answered("")], 1) is None
    metrics = answer_metrics([answered("word")], eos_ids=frozenset({2}), exact_match=True)
    assert set(metrics) == {"eval/distinct_1", "eval/answer_tokens", "eval/ended"}


def test_seeds_become_a_mean_and_a_sample_standard_deviation() -> None:
    found = over_seeds([{"a": 1.0, "b": 4.0}, {"a": 2.0}, {"a": 6.0}])
    # a: mean 3, deviations -2, -1, 3, squares 14, over n - 1 = 2
    assert found == {"a": pytest.approx(3.0), "a_std": pytest.approx(7**0.5), "b": 4.0}


def test_a_seed_fixes_the_answers_and_leaves_all_other_random_numbers_alone(
    student_lm: SplitModel, settings: SamplingSettings
) -> None:
    encoder = PromptEncoder(make_tokenizer(), template="chat", eos_ids=frozenset({2}))
    rows = [Row(i, "", prompt, None, None) for i, prompt in enumerate(PROMPTS)]
    states = torch.random.get_rng_state(), random.getstate()

    def drawn(seed: int, **changed: float) -> list[tuple[int, ...]]:
        answers = answer_rows(
            student_lm, rows, encoder=encoder, settings=replace(settings, **changed), batch_size=3, seed=seed
        )
        assert [answer.row for answer in answers] == rows
        assert all(answer.text == encoder.text(answer.response_ids) for answer in answers)
        return [answer.response_ids for answer in answers]

    assert drawn(0) == drawn(0) != drawn(1)
    assert drawn(0, temperature=0) == drawn(1, temperature=0)
    assert torch.equal(torch.random.get_rng_state(), states[0])
    assert random.getstate() == states[1]
