"""Rows are chosen by what is left to learn from them: how often, measured on what, and what stays as it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from app.core.job_config import ScrgConfig
from tests.worker.distill.conftest import PROMPTS
from worker.distill import row_choice
from worker.distill.data import Row, RowOrder, ground_truth
from worker.distill.evaluate import response_states
from worker.distill.generate import SamplingSettings, sample
from worker.distill.models import SplitModel
from worker.distill.row_choice import (
    Looking,
    RowChoice,
    choose,
    disagreement,
    sampled_disagreement,
    taught_disagreement,
)
from worker.distill.scrg import read_with_teacher, score
from worker.distill.timing import Clock
from worker.distill.types import make_batch

PROMPTS_ONLY = [Row(i, f"prompt {i}", prompt, None, None) for i, prompt in enumerate(PROMPTS)]
RESPONSES = [(5, 6, 7, 2), (8,), (), (9, 10, 11, 12, 13, 2)]
TAUGHT = [replace(row, response_ids=RESPONSES[i]) for i, row in enumerate(PROMPTS_ONLY)]


def test_chances_are_in_proportion_to_the_disagreement() -> None:
    generator = torch.Generator().manual_seed(0)
    disagreement_B = torch.tensor([1.0, 2.0, 0.0, 5.0])
    draws = Counter(choose(TAUGHT, disagreement_B, 1, generator=generator)[0].number for _ in range(4000))
    assert [draws[row.number] / 4000 for row in TAUGHT] == pytest.approx([1 / 8, 2 / 8, 0, 5 / 8], abs=0.03)


def test_a_prompt_is_drawn_once_and_there_are_enough_when_nothing_disagrees() -> None:
    generator = torch.Generator().manual_seed(0)
    assert choose(TAUGHT, torch.zeros(4), 4, generator=generator) == TAUGHT


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


def chosen_rows(rows: Sequence[Row], count: int, looking: Looking) -> list[Row]:
    return choose(rows, disagreement(rows, **looking), count, generator=looking["generator"])


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
        chosen = chosen_rows(rows, count, seeded(looking, count))
        numbers = [row.number for row in chosen]
        assert numbers == sorted(set(numbers))
        assert len(chosen) == count
        assert chosen == chosen_rows(rows, count, seeded(looking, count))


@pytest.mark.parametrize("rows", [PROMPTS_ONLY, TAUGHT], ids=["prompts only", "with responses"])
def test_chances_are_what_is_left_to_learn(rows: list[Row], looking: Looking) -> None:
    measure = sampled_disagreement if rows is PROMPTS_ONLY else taught_disagreement
    expected_B = measure(rows, **looking)
    draws = Counter(chosen_rows(rows, 1, seeded(looking, seed))[0].number for seed in range(400))
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
    equal: Looking = {**looking, "student": looking["teacher"]}
    assert taught_disagreement(TAUGHT, **equal).abs().max() < 1e-5


def test_kept_states_spare_the_teachers_pass(
    looking: Looking, plain_teacher_lm: SplitModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = looking["teacher"] = plain_teacher_lm
    plain_B = taught_disagreement(TAUGHT, **looking)
    states = [response_states(teacher, make_batch(ground_truth([row]), pad_id=0)).detach() for row in TAUGHT]
    kept = [replace(row, teacher_TD=teacher_TD) for row, teacher_TD in zip(TAUGHT, states, strict=True)]
    passes = passes_of(teacher, monkeypatch)
    assert taught_disagreement(kept, **looking).tolist() == pytest.approx(plain_B.tolist(), rel=1e-4)
    assert passes == []
    taught_disagreement(TAUGHT, **looking)
    assert passes == [len(TAUGHT)]


def test_without_a_loss_that_reads_the_teacher_the_likelihood_decides(
    looking: Looking, plain_teacher_lm: SplitModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    student, looking["teacher"] = looking["student"], plain_teacher_lm
    passes = passes_of(plain_teacher_lm, monkeypatch)
    unread: Looking = {**looking, "reads_teacher": False}
    found_B = taught_disagreement(TAUGHT, **unread)
    assert passes == []
    for row, found in zip(TAUGHT, found_B.tolist(), strict=True):
        batch = make_batch(ground_truth([row]), pad_id=0)
        log_q_NV = student.head(response_states(student, batch)).detach().double().log_softmax(-1)
        expected = -sum(float(log_q_NV[n, token]) for n, token in enumerate(row.response_ids or ()))
        assert found == pytest.approx(expected, rel=1e-4)


def test_one_row_without_a_response_has_all_of_them_sampled(looking: Looking, monkeypatch: pytest.MonkeyPatch) -> None:
    called = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        called.append(1)
        return sample(*args, **kwargs)

    monkeypatch.setattr(row_choice, "sample", counted)
    disagreement(TAUGHT, **looking)
    assert called == []
    disagreement([*TAUGHT[:-1], PROMPTS_ONLY[-1]], **looking)
    assert called == [1]


def row_choice_of(rows: Sequence[Row], *, skip_known: bool = True, candidates: int = 2) -> RowChoice:
    return RowChoice(RowOrder(rows, seed=0), candidates=candidates, skip_known=skip_known)


def looks_of(monkeypatch: pytest.MonkeyPatch, found: dict[int, float]) -> Counter[int]:
    """Counts how often each row is looked at, and says what is found there."""
    seen: Counter[int] = Counter()

    def look(rows: Sequence[Row], **looking: Any) -> Tensor:
        seen.update(row.number for row in rows)
        return torch.tensor([found[row.number] for row in rows])

    monkeypatch.setattr(row_choice, "disagreement", look)
    return seen


MANY = [Row(number, "prompt", (5,), None, (6,)) for number in range(1, 41)]
# The first half is known: a hundredth of what the others have left.
KNOWN = {row.number: 0.01 if row.number <= 20 else 1.0 for row in MANY}


def test_what_is_known_is_passed_over_but_not_for_ever(looking: Looking, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = looks_of(monkeypatch, KNOWN)
    choice = row_choice_of(MANY)
    for _ in range(5):
        choice.take(4, **looking)
    assert set(seen.values()) == {1}  # all are looked at once before anything is known
    for _ in range(495):
        choice.take(4, **looking)
    known, unknown = (sum(seen[row.number] for row in rows) for rows in (MANY[:20], MANY[20:]))
    assert known + unknown == 500 * 8
    assert known / unknown == pytest.approx(0.1, abs=0.03)


def test_without_skipping_every_pass_looks_at_all_rows(looking: Looking, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = looks_of(monkeypatch, KNOWN)
    choice = row_choice_of(MANY, skip_known=False)
    for _ in range(50):
        choice.take(4, **looking)
    assert set(seen.values()) == {10}


def test_rows_with_nothing_left_at_all_still_make_batches(looking: Looking, monkeypatch: pytest.MonkeyPatch) -> None:
    looks_of(monkeypatch, dict.fromkeys(KNOWN, 0.0))
    choice = row_choice_of(MANY)
    assert all(len(choice.take(4, **looking)) == 4 for _ in range(20))


@pytest.mark.parametrize("found", [torch.nan, torch.inf])
def test_a_student_that_has_diverged_reaches_the_loss(
    found: float, looking: Looking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which knows how to say it; drawing from chances that are no numbers would end the run without a cause."""
    looks_of(monkeypatch, KNOWN | {7: found})
    choice = row_choice_of(MANY)
    taken = [row.number for _ in range(5) for row in choice.take(4, **looking)]
    assert 7 in taken
    looks_of(monkeypatch, dict.fromkeys(KNOWN, found))
    assert all(len(choice.take(4, **looking)) == 4 for _ in range(10))


def test_without_candidates_nothing_is_looked_at(looking: Looking, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = looks_of(monkeypatch, KNOWN)
    choice = row_choice_of(MANY, candidates=1)
    assert [row.number for row in choice.take(40, **looking)] == [row.number for row in RowOrder(MANY, seed=0).take(40)]
    assert not seen


def test_what_was_found_outlives_a_pause(looking: Looking, monkeypatch: pytest.MonkeyPatch) -> None:
    looks_of(monkeypatch, KNOWN)
    one, other = row_choice_of(MANY), row_choice_of(MANY)
    for _ in range(30):
        one.take(4, **seeded(looking, 1))
    other.load(one.state())
    assert [one.take(4, **seeded(looking, 2)) for _ in range(9)] == [
        other.take(4, **seeded(looking, 2)) for _ in range(9)
    ]


def test_a_run_that_remembered_nothing_yet_goes_on(looking: Looking, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints of earlier versions hold the order alone."""
    looks_of(monkeypatch, KNOWN)
    order, choice = RowOrder(MANY, seed=3), row_choice_of(MANY)
    order.take(8)
    choice.load(order.state())
    assert {row.number for row in choice.take(16, **looking)} <= {row.number for row in order.take(32)}
