"""Prompts are chosen by disagreement: how often, from which samples, and what stays as it was."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch

from app.core.job_config import ScrgConfig
from tests.worker.distill.conftest import PROMPTS
from worker.distill.data import Row
from worker.distill.generate import SamplingSettings, sample
from worker.distill.models import SplitModel
from worker.distill.prompt_choice import choose_rows, drawn
from worker.distill.scrg import read_with_teacher, score
from worker.distill.timing import Clock

ROWS = [Row(i, f"prompt {i}", prompt, None, None) for i, prompt in enumerate(PROMPTS)]


def test_chances_are_in_proportion_to_the_disagreement() -> None:
    generator = torch.Generator().manual_seed(0)
    disagreement_B = torch.tensor([1.0, 2.0, 0.0, 5.0])
    draws = Counter(drawn(disagreement_B, 1, generator=generator)[0] for _ in range(4000))
    assert [draws[b] / 4000 for b in range(4)] == pytest.approx([1 / 8, 2 / 8, 0, 5 / 8], abs=0.03)


def test_a_prompt_is_drawn_once_and_there_are_enough_when_nothing_disagrees() -> None:
    generator = torch.Generator().manual_seed(0)
    assert sorted(drawn(torch.zeros(5), 5, generator=generator)) == [0, 1, 2, 3, 4]


@pytest.fixture
def choose(teacher_lm: SplitModel, student_lm: SplitModel, settings: SamplingSettings):
    def chosen(count: int, *, seed: int = 0, student: SplitModel = student_lm, temperature: float = 1) -> list[Row]:
        return choose_rows(
            ROWS,
            count,
            teacher=teacher_lm,
            student=student,
            config=ScrgConfig(teacher_token="greedy"),
            settings=replace(settings, temperature=temperature),
            generator=torch.Generator().manual_seed(seed),
            clock=Clock(),
        )

    return chosen


def test_rows_keep_their_order_and_the_seed_decides(choose) -> None:
    for count in range(1, len(ROWS) + 1):
        rows = choose(count, seed=count)
        numbers = [row.number for row in rows]
        assert numbers == sorted(set(numbers))
        assert len(rows) == count
        assert rows == choose(count, seed=count)


def test_chances_come_from_the_divergence_along_the_students_own_samples(
    choose, teacher_lm: SplitModel, student_lm: SplitModel, settings: SamplingSettings
) -> None:
    """Greedy samples are the same every time, so the expected chances can be told."""
    greedy = replace(settings, temperature=0)
    generator = torch.Generator().manual_seed(0)
    state = sample(student_lm, PROMPTS, settings=greedy, generator=generator)
    reading = read_with_teacher(teacher_lm, state, settings=greedy)
    config = ScrgConfig(teacher_token="greedy")
    _, kl_BT = score(teacher_lm, student_lm, reading, state, config=config, generator=generator)
    expected = kl_BT.sum(1) / kl_BT.sum()
    draws = Counter(choose(1, seed=seed, temperature=0)[0].number for seed in range(400))
    assert [draws[row.number] / 400 for row in ROWS] == pytest.approx(expected.tolist(), abs=0.08)
