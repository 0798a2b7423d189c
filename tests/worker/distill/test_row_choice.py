"""Rows are chosen by what is left to learn from them: how often, measured on what, and what stays as it was."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from app.core.job_config import ScrgConfig
from tests.worker.distill.conftest import PROMPTS
from worker.distill import row_choice
from worker.distill.data import Row, ground_truth
from worker.distill.evaluate import response_states
from worker.distill.generate import SamplingSettings, sample
from worker.distill.models import SplitModel
from worker.distill.row_choice import Looking, choose_rows, drawn, sampled_disagreement, taught_disagreement
from worker.distill.scrg import read_with_teacher, score
from worker.distill.timing import Clock
from worker.distill.types import make_batch

PROMPTS_ONLY = [Row(i, f"prompt {i}", prompt, None, None) for i, prompt in enumerate(PROMPTS)]
RESPONSES = [(5, 6, 7, 2), (8,), (), (9, 10, 11, 12, 13, 2)]
TAUGHT = [replace(row, response_ids=RESPONSES[i]) for i, row in enumerate(PROMPTS_ONLY)]


def test_chances_are_in_proportion_to_the_disagreement() -> None:
    generator = torch.Generator().manual_seed(0)
    disagreement_B = torch.tensor([1.0, 2.0, 0.0, 5.0])
    draws = Counter(drawn(disagreement_B, 1, generator=generator)[0] for _ in range(4000))
    assert [draws[b] / 4000 for b in range(4)] == pytest.approx([1 / 8, 2 / 8, 0, 5 / 8], abs=0.03)


def test_a_prompt_is_drawn_once_and_there_are_enough_when_nothing_disagrees() -> None:
    generator = torch.Generator().manual_seed(0)
    assert sorted(drawn(torch.zeros(5), 5, generator=generator)) == [0, 1, 2, 3, 4]


@pytest.fixture
def looking(teacher_lm: SplitModel, student_lm: SplitModel, settings: SamplingSettings) -> Looking:
    """Greedy samples are the same every time, so the expected chances can be told."""
    return Looking(
        teacher=teacher_lm,
        student=student_lm,
        reads_teacher=True,
        config=ScrgConfig(teacher_token="greedy"),
        settings=replace(settings, temperature=0),
        generator=torch.Generator().manual_seed(0),
        clock=Clock(),
    )


def seeded(looking: Looking, seed: int) -> Looking:
    return {**looking, "generator": torch.Generator().manual_seed(seed)}


def passes_of(lm: SplitModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by the number of rows with every whole pass of the model."""
    seen: list[int] = []
    whole = lm.hidden

    def counted(ids_BT: Tensor, **kwargs: Any) -> Tensor:
        seen.append(len(ids_BT))
        return whole(ids_BT, **kwargs)

    monkeypatch.setattr(lm, "hidden", counted)
    return seen


@pytest.mark.parametrize("rows", [PROMPTS_ONLY, TAUGHT], ids=["prompts only", "with responses"])
def test_rows_keep_their_order_and_the_seed_decides(rows: list[Row], looking: Looking) -> None:
    for count in range(1, len(rows) + 1):
        chosen = choose_rows(rows, count, **seeded(looking, count))
        numbers = [row.number for row in chosen]
        assert numbers == sorted(set(numbers))
        assert len(chosen) == count
        assert chosen == choose_rows(rows, count, **seeded(looking, count))


@pytest.mark.parametrize("rows", [PROMPTS_ONLY, TAUGHT], ids=["prompts only", "with responses"])
def test_chances_are_what_is_left_to_learn(rows: list[Row], looking: Looking) -> None:
    measure = sampled_disagreement if rows is PROMPTS_ONLY else taught_disagreement
    expected_B = measure(rows, **looking)
    draws = Counter(choose_rows(rows, 1, **seeded(looking, seed))[0].number for seed in range(400))
    assert [draws[row.number] / 400 for row in rows] == pytest.approx(
        (expected_B / expected_B.sum()).tolist(), abs=0.08
    )


def test_a_sample_is_measured_by_the_divergence_along_it(looking: Looking) -> None:
    teacher, student, settings = looking["teacher"], looking["student"], looking["settings"]
    generator = torch.Generator().manual_seed(0)
    state = sample(student, PROMPTS, settings=settings, generator=generator)
    reading = read_with_teacher(teacher, state, settings=settings)
    _, kl_BT = score(teacher, student, reading, state, config=looking["config"], generator=generator)
    assert torch.equal(sampled_disagreement(PROMPTS_ONLY, **looking), kl_BT.sum(1))


@pytest.mark.parametrize("direction", ["teacher_student", "student_teacher"])
def test_a_response_is_measured_by_the_divergence_over_it(direction: str, looking: Looking) -> None:
    """Against each row alone, without padding, in one piece."""
    looking = {**looking, "config": ScrgConfig(kl_direction=direction)}
    expected = []
    for row in TAUGHT:
        batch = make_batch(ground_truth([row]), pad_id=0)
        log_p, log_q = (
            looking[name].head(response_states(looking[name], batch)).detach().double().log_softmax(-1)
            for name in ("teacher", "student")
        )
        ahead, behind = (log_p, log_q) if direction == "teacher_student" else (log_q, log_p)
        expected.append(float((ahead.exp() * (ahead - behind)).sum()))
    assert taught_disagreement(TAUGHT, **looking).tolist() == pytest.approx(expected, rel=1e-4)
    assert expected[2] == 0  # a response without a token has nothing to teach


def test_equal_models_have_nothing_to_learn_from_each_other(looking: Looking) -> None:
    assert taught_disagreement(TAUGHT, **{**looking, "student": looking["teacher"]}).abs().max() < 1e-5


def test_kept_states_spare_the_teachers_pass(looking: Looking, monkeypatch: pytest.MonkeyPatch) -> None:
    teacher = looking["teacher"]
    plain_B = taught_disagreement(TAUGHT, **looking)
    states = [response_states(teacher, make_batch(ground_truth([row]), pad_id=0)).detach() for row in TAUGHT]
    kept = [replace(row, teacher_TD=teacher_TD) for row, teacher_TD in zip(TAUGHT, states, strict=True)]
    passes = passes_of(teacher, monkeypatch)
    assert taught_disagreement(kept, **looking).tolist() == pytest.approx(plain_B.tolist(), rel=1e-4)
    assert passes == []
    taught_disagreement(TAUGHT, **looking)
    assert passes == [len(TAUGHT)]


def test_without_a_loss_that_reads_the_teacher_the_likelihood_decides(
    looking: Looking, monkeypatch: pytest.MonkeyPatch
) -> None:
    student = looking["student"]
    passes = passes_of(looking["teacher"], monkeypatch)
    found_B = taught_disagreement(TAUGHT, **{**looking, "reads_teacher": False})
    assert passes == []
    for row, found in zip(TAUGHT, found_B.tolist(), strict=True):
        batch = make_batch(ground_truth([row]), pad_id=0)
        log_q_NV = student.head(response_states(student, batch)).detach().double().log_softmax(-1)
        expected = -sum(float(log_q_NV[n, token]) for n, token in enumerate(row.response_ids or ()))
        assert found == pytest.approx(expected, rel=1e-4)


def test_one_row_without_a_response_has_all_of_them_sampled(looking: Looking, monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setattr(row_choice, "sample", lambda *args, **kwargs: called.append(1) or sample(*args, **kwargs))
    choose_rows(TAUGHT, 2, **looking)
    assert called == []
    choose_rows([*TAUGHT[:-1], PROMPTS_ONLY[-1]], 2, **looking)
    assert called == [1]
