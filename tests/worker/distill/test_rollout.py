"""Fresh batches: what is trained, what is stored, what the page is told, and the teacher states that come with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from app.core.job_config import ScrgConfig
from tests.worker.distill.conftest import PROMPTS
from worker.distill.data import Row
from worker.distill.evaluate import response_states
from worker.distill.generate import SamplingSettings
from worker.distill.models import SplitModel, load_tokenizer
from worker.distill.rollout import FreshBatch, draw_fresh
from worker.distill.timing import Clock
from worker.distill.types import make_batch

ROWS = [Row(i, f"prompt {i}", prompt, None, None) for i, prompt in enumerate(PROMPTS)]


@pytest.fixture
def fresh(teacher_lm: SplitModel, student_lm: SplitModel, settings: SamplingSettings, tiny_teacher: Path):
    tokenizer = load_tokenizer(str(tiny_teacher))

    def draw(
        config: ScrgConfig,
        *,
        seed: int = 0,
        student: SplitModel = student_lm,
        temperature: float = 1,
        along: bool = True,
    ) -> FreshBatch:
        return draw_fresh(
            ROWS,
            teacher=teacher_lm,
            student=student,
            config=config,
            settings=replace(settings, temperature=temperature),
            generator=torch.Generator().manual_seed(seed),
            tokenizer=tokenizer,
            clock=Clock(),
            along=along,
        )

    return draw


def test_teacher_states_are_those_of_a_pass_over_the_batch(fresh, teacher_lm: SplitModel) -> None:
    for rounds in (0, 1, 3):
        drawn = fresh(ScrgConfig(rounds=rounds))
        batch = make_batch(drawn.sequences, pad_id=0)
        with torch.no_grad():
            expected_ND = response_states(teacher_lm, batch)
        torch.testing.assert_close(drawn.teacher_hidden_ND, expected_ND, atol=5e-4, rtol=1e-3)
        assert not any(sequence.is_ground_truth for sequence in drawn.sequences)


def test_store_chooses_what_the_buffer_gets(fresh) -> None:
    corrected = fresh(ScrgConfig(store="corrected"))
    original = fresh(ScrgConfig(store="original"))
    assert corrected.sequences == original.sequences == corrected.to_store
    assert original.to_store == fresh(ScrgConfig(rounds=0)).sequences
    assert original.to_store != original.sequences


def test_drop_takes_out_rows_without_a_mismatch_but_never_all(fresh, teacher_lm: SplitModel) -> None:
    greedy = ScrgConfig(teacher_token="greedy", no_mismatch="drop")
    nothing_to_correct = fresh(greedy, student=teacher_lm, temperature=0)
    assert len(nothing_to_correct.sequences) == len(ROWS)
    assert nothing_to_correct.example is None
    for seed in range(40):  # until a batch has both kinds of rows
        drawn = fresh(greedy, student=teacher_lm, temperature=0.05, seed=seed)
        if len(drawn.sequences) < len(ROWS):
            break
    else:
        pytest.fail("no batch in which a row was left uncorrected")
    assert len(drawn.teacher_hidden_ND) == sum(len(sequence.response_ids) for sequence in drawn.sequences)


def test_metrics_and_example_describe_the_correction(fresh, tiny_teacher: Path) -> None:
    before, drawn = fresh(ScrgConfig(rounds=0)), fresh(ScrgConfig(rounds=1))
    assert set(drawn.metrics) == {
        "sampling/response_tokens",
        "scrg/mismatch_rate",
        "scrg/error_position",
        "scrg/error_kl",
        "scrg/dropped_tokens",
    }
    assert 0 < drawn.metrics["scrg/mismatch_rate"] <= 1
    assert 0 <= drawn.metrics["scrg/error_position"] < 1
    assert before.correction(3) is None
    event = drawn.correction(3)
    assert event is not None
    b = [row.prompt for row in ROWS].index(event.prompt)
    tokenizer = load_tokenizer(str(tiny_teacher))
    old, new = before.sequences[b].response_ids, drawn.sequences[b].response_ids
    j = event.error_position
    assert event.step == 3
    assert event.before == tokenizer.decode(old[:j]) == tokenizer.decode(new[:j])
    assert (event.student_token, event.teacher_token) == (tokenizer.decode([old[j]]), tokenizer.decode([new[j]]))
    assert (event.dropped, event.regenerated) == (tokenizer.decode(old[j + 1 :]), tokenizer.decode(new[j + 1 :]))


def test_reading_along_changes_only_how_much_is_dropped(fresh) -> None:
    config = ScrgConfig(position="first", teacher_token="greedy", rounds=3)
    one, other = fresh(config), fresh(config, along=False)
    assert one.sequences == other.sequences
    assert one.to_store == other.to_store
    torch.testing.assert_close(one.teacher_hidden_ND, other.teacher_hidden_ND, atol=5e-4, rtol=1e-3)
    assert one.metrics.pop("scrg/dropped_tokens") < other.metrics.pop("scrg/dropped_tokens")
    assert one.metrics == pytest.approx(other.metrics, rel=1e-3)
    event, expected = one.correction(1), other.correction(1)
    assert event is not None
    assert expected is not None
    assert expected.dropped.startswith(event.dropped)
    assert event.model_dump(exclude={"dropped", "kl"}) == expected.model_dump(exclude={"dropped", "kl"})
