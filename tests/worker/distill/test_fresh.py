"""Batches that are drawn together: divided without mixing anything up, used once each, and kept over a pause."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from app.core.job_config import ScrgConfig
from tests.tiny_models import write_rows
from tests.worker.distill.conftest import CPU, PROMPTS, MakeConfig
from worker.distill import step as step_module
from worker.distill.assembly import assemble
from worker.distill.data import Row
from worker.distill.evaluate import response_states
from worker.distill.fresh import WaitingBatches, divide
from worker.distill.generate import SamplingSettings
from worker.distill.models import SplitModel, load_tokenizer
from worker.distill.rollout import FreshBatch, draw_fresh
from worker.distill.step import Stepper
from worker.distill.timing import Clock
from worker.distill.training_state import read_state, write_state
from worker.distill.types import make_batch

SIZE = 2


@pytest.fixture
def generation(
    teacher_lm: SplitModel, student_lm: SplitModel, settings: SamplingSettings, tiny_teacher: Path
) -> FreshBatch:
    """Three batches' rows, no two alike, after two rounds of correction; the buffer gets the samples as they were."""
    prompts = [*PROMPTS, (22, 23), (24, 25, 26)]
    return draw_fresh(
        [Row(i, f"prompt {i}", prompt, None, None) for i, prompt in enumerate(prompts)],
        teacher=teacher_lm,
        student=student_lm,
        config=ScrgConfig(rounds=2, store="original"),
        settings=replace(settings, temperature=1.3),
        generator=torch.Generator().manual_seed(0),
        tokenizer=load_tokenizer(str(tiny_teacher)),
        clock=Clock(),
    )


def test_every_part_has_what_belongs_to_its_rows(generation: FreshBatch, teacher_lm: SplitModel) -> None:
    parts = list(divide(generation, 3))
    assert [len(part.sequences) for part in parts] == [SIZE] * 3
    assert [s for part in parts for s in part.sequences] == generation.sequences
    assert [s for part in parts for s in part.to_store] == generation.to_store != generation.sequences
    torch.testing.assert_close(torch.cat([part.teacher_hidden_ND for part in parts]), generation.teacher_hidden_ND)
    for part in parts:
        with torch.no_grad():
            expected_ND = response_states(teacher_lm, make_batch(part.sequences, pad_id=0))
        torch.testing.assert_close(part.teacher_hidden_ND, expected_ND, atol=5e-4, rtol=1e-3)
        assert part.metrics == generation.metrics != {}
    assert [part.correction(4) for part in parts] == [generation.correction(4), None, None]
    assert generation.example is not None


@pytest.mark.parametrize(
    ("rows", "batches", "sizes"), [(6, 1, [6]), (6, 3, [2, 2, 2]), (5, 3, [1, 2, 2]), (4, 3, [1, 1, 2]), (2, 3, [1, 1])]
)
def test_rows_that_are_left_are_shared_out(generation: FreshBatch, rows: int, batches: int, sizes: list[int]) -> None:
    tokens = sum(len(sequence.response_ids) for sequence in generation.sequences[:rows])
    left = replace(
        generation,
        sequences=generation.sequences[:rows],
        to_store=generation.to_store[:rows],
        teacher_hidden_ND=generation.teacher_hidden_ND[:tokens],
    )
    parts = list(divide(left, batches))
    assert [len(part.sequences) for part in parts] == sizes
    for part in parts:
        assert len(part.teacher_hidden_ND) == sum(len(sequence.response_ids) for sequence in part.sequences)


def test_what_waits_is_kept_to_the_last_bit(generation: FreshBatch, tmp_path: Path) -> None:
    waiting, again = WaitingBatches(CPU), WaitingBatches(CPU)
    waiting.put(generation, batches=3)
    waiting.take()
    write_state(tmp_path, weights={}, state={"waiting": waiting.state()})
    again.load(read_state(tmp_path)["waiting"])
    assert len(again) == len(waiting) == 2
    for _ in range(2):
        one, other = waiting.take(), again.take()
        assert torch.equal(one.teacher_hidden_ND, other.teacher_hidden_ND)
        assert (one.sequences, one.to_store, one.metrics) == (other.sequences, other.to_store, other.metrics)
    assert not again


@pytest.fixture
def drawn_rows(monkeypatch: pytest.MonkeyPatch) -> list[list[Row]]:
    """The rows of every generation, as they are drawn."""
    found: list[list[Row]] = []

    def counted(rows: list[Row], **rest: object) -> FreshBatch:
        found.append(rows)
        return draw_fresh(rows, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(step_module, "draw_fresh", counted)
    return found


def stepper(make_config: MakeConfig, folder: Path, *, accumulation: int = 1, **sampling: object) -> Stepper:
    config = make_config(
        data={"path": str(write_rows(folder / "rows.jsonl", 34)), "dev_rows": 4},
        sampling={"max_new_tokens": 4, **sampling},
        training={"max_steps": 10, "batch_size": SIZE, "gradient_accumulation": accumulation},
    )
    return Stepper(assemble(config, emit=lambda event: None, should_stop=lambda: None))


def test_a_generation_serves_as_many_batches_and_none_is_drawn_in_vain(
    make_config: MakeConfig, tmp_path: Path, drawn_rows: list[list[Row]]
) -> None:
    run = stepper(make_config, tmp_path, kind="on_policy", batches_per_generation=4)
    inputs: list[tuple[int, ...]] = []
    counts, told = [], []
    for step in range(1, 11):
        (drawn,) = run.take(step).window
        counts.append(len(drawn_rows))
        told.append(drawn.correction is not None)
        inputs += [tuple(row) for row in drawn.batch.input_ids_BT.tolist()]
    assert counts == [1, 1, 1, 1, 2, 2, 2, 2, 3, 3]
    assert [len(rows) for rows in drawn_rows] == [4 * SIZE, 4 * SIZE, 2 * SIZE]  # the last: two steps were left
    assert not any(told[i] for i in (1, 2, 3, 5, 6, 7, 9))
    assert any(told)
    rows = [row for generation in drawn_rows for row in generation]
    assert len({row.number for row in rows}) == len(rows) == len(inputs)  # one pass over the data: each once
    assert all(seen[: len(row.prompt_ids)] == row.prompt_ids for row, seen in zip(rows, inputs, strict=True))


def test_where_batches_come_from_does_not_depend_on_it(make_config: MakeConfig, tmp_path: Path) -> None:
    """A batch enters the buffer when it is used; if all of a generation did at once, replay would begin sooner."""
    courses = []
    for batches in (1, 5):
        run = stepper(
            make_config,
            tmp_path,
            kind="adaptive_off_policy",
            phi_start=0.8,
            buffer_size=6,
            batches_per_generation=batches,
            accumulation=2,
        )
        courses.append(
            [
                ([drawn.source for drawn in run.take(step).window], len(run.schedule.buffer), run.num_fresh)
                for step in range(1, 8)
            ]
        )
    assert courses[0] == courses[1]
    assert {source for sources, _, _ in courses[0] for source in sources} == {"ground_truth", "fresh", "replay"}


def test_one_batch_at_a_time_is_the_default(
    make_config: MakeConfig, tmp_path: Path, drawn_rows: list[list[Row]]
) -> None:
    run = stepper(make_config, tmp_path, kind="on_policy")
    for step in (1, 2):
        run.take(step)
    assert [len(rows) for rows in drawn_rows] == [SIZE, SIZE]
    assert run.state()["waiting"] == []
