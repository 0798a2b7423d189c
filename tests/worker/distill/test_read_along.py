"""Reading along: the tokens, states, outcomes and random numbers of SCRG on whole samples, for less work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from app.core.job_config import ScrgConfig
from tests.worker.distill.conftest import PROMPTS
from worker.distill import read_along
from worker.distill.generate import Rollouts, SamplingSettings, sample
from worker.distill.models import SplitModel, load_model
from worker.distill.scrg import RoundOutcome, TeacherReading, revise
from worker.distill.timing import Clock

EOS = frozenset({2, *range(30, 45)})  # many, so that corrections to EOS and early ends really happen
RULE = {"position": "first", "teacher_token": "greedy"}
Drawn = tuple[Rollouts, TeacherReading, list[RoundOutcome]]


@pytest.fixture
def long(settings: SamplingSettings) -> SamplingSettings:
    """Room for looks of several sizes; the student is the teacher at a low temperature, so it is right for a while."""
    return replace(settings, max_new_tokens=28, temperature=0.4)


def whole(
    teacher: SplitModel, student: SplitModel, config: ScrgConfig, settings: SamplingSettings, chance: torch.Generator
) -> Drawn:
    state = sample(student, PROMPTS, settings=settings, generator=chance)
    return state, *revise(teacher, student, state, config=config, settings=settings, generator=chance)


def along(
    teacher: SplitModel, student: SplitModel, config: ScrgConfig, settings: SamplingSettings, chance: torch.Generator
) -> Drawn:
    return read_along.sample_and_revise(
        teacher, student, PROMPTS, config=config, settings=settings, generator=chance, clock=Clock()
    )


def assert_the_same(one: Drawn, other: Drawn) -> None:
    (state, reading, outcomes), (expected, expected_reading, expected_outcomes) = one, other
    assert state.responses() == expected.responses()
    valid_BT = state.valid_BT()
    for mine, theirs in ((state, expected), (reading, expected_reading)):
        torch.testing.assert_close(mine.hidden_BTD[valid_BT], theirs.hidden_BTD[valid_BT], atol=5e-4, rtol=1e-3)
        assert mine.decoder.length_B.tolist() == theirs.decoder.length_B.tolist()
    assert len(outcomes) == len(expected_outcomes)
    for mine, theirs in zip(outcomes, expected_outcomes, strict=True):
        assert mine.corrected_B.tolist() == theirs.corrected_B.tolist()
        rows = mine.corrected_B
        for name in ("position_B", "student_token_B", "teacher_token_B"):
            assert getattr(mine, name)[rows].tolist() == getattr(theirs, name)[rows].tolist()
        torch.testing.assert_close(mine.kl_B[rows], theirs.kl_B[rows], atol=1e-4, rtol=1e-3)
        for b in rows.nonzero().squeeze(1).tolist():
            assert theirs.dropped[b][: len(mine.dropped[b])] == mine.dropped[b]


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one round": ({"rounds": 1}, {}),
    "three rounds": ({"rounds": 3}, {}),
    "more rounds than mismatches": ({"rounds": 16}, {"temperature": 0.15}),
    "many ends": ({"rounds": 3}, {"eos_ids": EOS}),
    "many ends, skipped": ({"rounds": 3, "eos_correction": "skip"}, {"eos_ids": EOS}),
    "ends ignored": ({"rounds": 2}, {"eos_ids": EOS, "ignore_eos": True}),
    "anywhere": ({"rounds": 3, "later_rounds": "anywhere", "eos_correction": "skip"}, {"eos_ids": EOS}),
    "the other divergence": ({"rounds": 2, "kl_direction": "student_teacher"}, {}),
    "whole temperature": ({"rounds": 3}, {"temperature": 1.0}),
    "nucleus": ({"rounds": 3}, {"temperature": 1.0, "top_p": 0.6}),
    "greedy student": ({"rounds": 2}, {"temperature": 0.0}),
    "one token": ({"rounds": 3}, {"max_new_tokens": 1, "temperature": 1.0}),
    "a look longer than the rest": ({"rounds": 3}, {"max_new_tokens": 5, "eos_ids": EOS}),
}


@pytest.fixture(scope="module", params=["lean", "plain"])
def exact_models(request: pytest.FixtureRequest, tiny_teacher: Path, tiny_student: Path) -> tuple[SplitModel, ...]:
    """In float64: the two ways add up in another order, and among ten thousand draws one would else fall on an edge."""
    return tuple(
        SplitModel(
            load_model(str(folder), device=torch.device("cpu"), dtype=torch.float64),
            vocabulary_size=320,
            lean=request.param == "lean",
        )
        for folder in (tiny_teacher, tiny_student)
    )


@pytest.mark.parametrize("case", CASES)
def test_equals_correcting_whole_samples(
    exact_models: tuple[SplitModel, SplitModel], long: SamplingSettings, case: str
) -> None:
    teacher, student = exact_models
    assert (teacher.lean is None) == (student.lean is None)
    switches, changes = CASES[case]
    config, settings = ScrgConfig(**RULE, **switches), replace(long, **changes)
    corrected = 0
    for seed, writer in enumerate((teacher, teacher, student)):
        first, second = (torch.Generator().manual_seed(seed) for _ in range(2))
        one = along(teacher, writer, config, settings, first)
        assert_the_same(one, whole(teacher, writer, config, settings, second))
        assert torch.equal(first.get_state(), second.get_state())  # so the batches to come are the same, too
        corrected += sum(int(outcome.corrected_B.sum()) for outcome in one[2])
    assert corrected


@pytest.mark.parametrize("first_look", [2, 3, 64])
def test_how_far_it_looks_changes_no_token(
    teacher_lm: SplitModel, long: SamplingSettings, monkeypatch: pytest.MonkeyPatch, first_look: int
) -> None:
    config = ScrgConfig(**RULE, rounds=3)
    expected = along(teacher_lm, teacher_lm, config, long, torch.Generator().manual_seed(7))
    monkeypatch.setattr(read_along, "FIRST_LOOK", first_look)
    one = along(teacher_lm, teacher_lm, config, long, torch.Generator().manual_seed(7))
    assert one[0].responses() == expected[0].responses()


def test_each_token_is_computed_once_and_little_in_vain(teacher_lm: SplitModel, long: SamplingSettings) -> None:
    """Counts, not times: both models compute the prompts, the final responses but their last tokens, and what was
    dropped, which is less than whole samples drop."""
    settings, config = replace(long, ignore_eos=True), ScrgConfig(**RULE, rounds=3)
    dropped = {}
    for way in (along, whole):
        state, reading, outcomes = way(teacher_lm, teacher_lm, config, settings, torch.Generator().manual_seed(1))
        dropped[way] = sum(len(tail) for outcome in outcomes for tail in outcome.dropped)
        if way is along:
            needed = sum(map(len, PROMPTS)) + sum(n - 1 for n in state.length_B.tolist()) + dropped[along]
            assert state.decoder.tokens_computed == needed
            assert reading.decoder.tokens_computed == needed
    assert 0 < dropped[along] < 0.3 * dropped[whole]


def test_applies_only_where_what_is_dropped_does_not_matter(
    teacher_lm: SplitModel, student_lm: SplitModel, gemma_folder: Path
) -> None:
    models = {"teacher": teacher_lm, "student": student_lm}
    rule = {**RULE, "rounds": 3}
    assert read_along.applies(ScrgConfig(**rule), **models)
    for name, value in (("position", "random"), ("teacher_token", "sample"), ("store", "original"), ("rounds", 0)):
        assert not read_along.applies(ScrgConfig(**{**rule, name: value}), **models)
    gemma = SplitModel(load_model(str(gemma_folder), device=torch.device("cpu")), vocabulary_size=320)
    assert not read_along.applies(ScrgConfig(**rule), teacher=gemma, student=student_lm)
