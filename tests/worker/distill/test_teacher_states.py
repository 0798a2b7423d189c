"""Kept states of the teacher: the same training without a teacher pass, found by runs that would compute the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from app.core.errors import Paused
from app.core.events import Event, PhaseProgress, Warned
from app.core.folder_cache import FolderCache
from app.core.job_config import DistillConfig
from tests.tiny_models import make_tiny_model, write_rows
from tests.worker.distill.conftest import MakeConfig
from worker.distill.assembly import Assembly, assemble
from worker.distill.data import Row, ground_truth, kept_states
from worker.distill.evaluate import response_states
from worker.distill.lean import LeanBody
from worker.distill.models import SplitModel
from worker.distill.responses import read_batches
from worker.distill.step import Stepper
from worker.distill.teacher_states import keeps_states
from worker.distill.trainer import DistilledStudent, distill

DATA_ONLY = {"kind": "ground_truth", "max_new_tokens": 10}
DATA_PHASES = ("teacher_responses", "teacher_states")


@pytest.fixture
def cache(tmp_path: Path) -> FolderCache:
    return FolderCache(tmp_path / "states", limit_bytes=2**24)


@pytest.fixture
def mixed_rows(tiny_rows: Path, tmp_path: Path) -> Path:
    """Every third row lacks a response."""
    rows = [json.loads(line) for line in tiny_rows.read_text().splitlines()]
    some = [row | {"response": None} if i % 3 == 0 else row for i, row in enumerate(rows)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, some)))
    return tmp_path / "rows.jsonl"


def load(config: DistillConfig, states: FolderCache | None, events: list[Event] | None = None) -> Assembly:
    tell: Callable[[Event], None] = (events if events is not None else []).append
    return assemble(config, emit=tell, should_stop=lambda: None, states=states)


def states(row: Row) -> torch.Tensor:
    assert row.teacher_TD is not None
    return row.teacher_TD


def phases(events: list[Event]) -> set[str]:
    """Which passes over the data were told of."""
    return {event.phase for event in events if isinstance(event, PhaseProgress) and event.phase in DATA_PHASES}


@contextmanager
def counted(lm: SplitModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Passes of the body of `lm`, plain and lean, while the block runs."""
    passes: list[str] = []
    hidden, lean = SplitModel.hidden, LeanBody.__call__

    def count_hidden(self: SplitModel, *args: Any, **kwargs: Any) -> Any:
        passes.extend(["plain"] * (self is lm))
        return hidden(self, *args, **kwargs)

    def count_lean(self: LeanBody, *args: Any, **kwargs: Any) -> Any:
        passes.extend(["lean"] * (self is lm.lean))
        return lean(self, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(SplitModel, "hidden", count_hidden)
        patched.setattr(LeanBody, "__call__", count_lean)
        yield passes


@pytest.mark.parametrize("sft_too", [False, True])
def test_a_step_on_the_data_runs_no_teacher(
    sft_too: bool, make_config: MakeConfig, mixed_rows: Path, cache: FolderCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = [{"kind": "sft"}] * sft_too + [{"kind": "dac_kl"}, {"kind": "span"}]
    config = make_config(
        data={"path": str(mixed_rows)}, sampling=DATA_ONLY, losses=losses, training={"gradient_accumulation": 2}
    )
    for states, expected in ((cache, []), (None, ["lean", "lean"])):
        run = load(config, states)
        stepper = Stepper(run)
        with counted(run.teacher, monkeypatch) as passes:
            metrics = stepper.take(1).metrics
        assert passes == expected
        assert metrics["loss/dac_kl"] > 0


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", ["llama", "untied", "gemma2", "whole_logits", "plain_decoding"])
def test_losses_and_gradients_are_those_of_the_plain_path(
    case: str, precision: str, make_config: MakeConfig, mixed_rows: Path, cache: FolderCache, tmp_path: Path
) -> None:
    """In float32 to 1e-4 of the largest gradient, in bfloat16 to what rounding in batches of other shapes makes."""
    folder = make_tiny_model(
        tmp_path / "teacher",
        seed=4,
        architecture="gemma2" if case == "gemma2" else "llama",
        tie_word_embeddings=case != "untied",
    )
    training = {"logits": "whole"} if case == "whole_logits" else {}
    training |= {"decoding": "plain"} if case == "plain_decoding" else {}
    config = make_config(
        teacher={"model": str(folder)},
        student={"kind": "from_teacher", "layers": 1, "choice": "first"},
        data={"path": str(mixed_rows)},
        sampling=DATA_ONLY,
        losses=[{"kind": "sft"}, {"kind": "dac_kl"}, {"kind": "span"}],
        training={"precision": precision, **training},
    )
    plain, kept = (_first_step(config, states) for states in (None, cache))
    tolerance = 1e-4 if precision == "float32" else 0.05
    for name, value in plain[0].items():
        assert kept[0][name] == pytest.approx(value, rel=tolerance, abs=tolerance), name
    largest = max(float(gradient.abs().max()) for gradient in plain[1].values())
    assert largest > 0
    for name, gradient in plain[1].items():
        torch.testing.assert_close(kept[1][name], gradient, rtol=0, atol=tolerance * largest, msg=name)


def _first_step(config: DistillConfig, states: FolderCache | None) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """Losses and gradients of the first batch, before the optimizer moves."""
    run = load(config, states)
    rows = list(run.train_rows[2:7])
    assert (kept_states(rows, run.device) is None) == (states is None)
    stepper = Stepper(run)
    stepper._answered.take = lambda size, **looking: rows  # type: ignore[method-assign]  # the same batch for both
    drawn = stepper._draw(1)
    losses = stepper._backward(drawn, run.objective.counts([drawn.batch]))
    gradients = {name: p.grad.clone() for name, p in run.student.model.named_parameters() if p.grad is not None}
    return losses, gradients


def test_reading_the_same_batch_gives_the_same_bits(teacher_lm: SplitModel, make_config: MakeConfig) -> None:
    run = load(make_config(), None)
    sequences = sorted(ground_truth(run.train_rows), key=lambda s: len(s.prompt_ids) + len(s.response_ids))
    (said,) = read_batches(run.teacher, sequences, batch_size=len(sequences), pad_id=0)
    assert [k for k, _ in said.written] == list(range(len(sequences)))
    assert torch.equal(said.states_ND, response_states(run.teacher, run.batch(sequences)))


def test_a_second_run_makes_no_teacher_pass_over_the_data(
    make_config: MakeConfig, mixed_rows: Path, cache: FolderCache, tmp_path: Path
) -> None:
    """Not even with other losses, steps and seed; and what it trains on is the same to the last bit."""
    config = make_config(data={"path": str(mixed_rows)}, sampling=DATA_ONLY)
    first_events: list[Event] = []
    first = load(config, cache, first_events)
    assert phases(first_events) == {"teacher_responses", "teacher_states"}
    (entry,) = cache.entries()
    other = make_config(
        data={"path": str(mixed_rows)},
        sampling={"kind": "mixed", "max_new_tokens": 4},
        losses=[{"kind": "reverse_kl"}],
        training={"max_steps": 9, "seed": 5},
    )
    events: list[Event] = []
    second = load(other, cache, events)
    assert phases(events) == set()
    assert [found.key for found in cache.entries()] == [entry.key]
    for one, two in zip(first.train_rows, second.train_rows, strict=True):
        assert (one.response_ids, one.reference) == (two.response_ids, two.reference)
        assert torch.equal(states(one), states(two))


def test_another_teacher_row_type_or_batch_is_another_key(
    make_config: MakeConfig, mixed_rows: Path, cache: FolderCache, tmp_path: Path
) -> None:
    base: dict[str, Any] = {"data": {"path": str(mixed_rows)}, "sampling": DATA_ONLY}
    lines = mixed_rows.read_text().splitlines()
    (tmp_path / "fewer.jsonl").write_text("\n".join(lines[1:]))
    (tmp_path / "turned.jsonl").write_text("\n".join([lines[1], lines[0], *lines[2:]]))
    teacher = make_tiny_model(tmp_path / "other", layers=4, seed=7)
    changes: list[dict[str, Any]] = [
        {},
        {"teacher": {"model": str(teacher)}},
        {"data": {"path": str(tmp_path / "fewer.jsonl")}},
        {"data": {"path": str(tmp_path / "turned.jsonl")}},
        {"data": {"max_response_tokens": 5}},
        {"training": {"precision": "bfloat16"}},
        {"training": {"batch_size": 6}},
        {"training": {"decoding": "plain"}},
        {"warmup": {"teacher_sft_steps": 1}},  # a tuned teacher is another one
    ]
    for i, change in enumerate(changes, start=1):
        merged = {name: {**base.get(name, {}), **change.get(name, {})} for name in base | change}
        load(make_config(**merged), cache)
        assert len(cache.entries()) == i, change
    load(make_config(**base), cache)
    assert len(cache.entries()) == len(changes)


def test_altered_states_are_computed_again(make_config: MakeConfig, mixed_rows: Path, cache: FolderCache) -> None:
    config = make_config(data={"path": str(mixed_rows)}, sampling=DATA_ONLY)
    first = load(config, cache)
    (entry,) = cache.entries()
    path = cache.folder / entry.key / "states.bin"
    whole = path.read_bytes()
    path.unlink()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    events: list[Event] = []
    second = load(config, cache, events)
    assert [event.code for event in events if isinstance(event, Warned)] == ["teacher_states_altered"]
    assert path.read_bytes() == whole
    for one, two in zip(first.train_rows, second.train_rows, strict=True):
        assert torch.equal(states(one), states(two))


def test_too_much_for_the_disk_is_said_and_not_kept(make_config: MakeConfig, tmp_path: Path) -> None:
    tiny = FolderCache(tmp_path / "states", limit_bytes=1000)
    events: list[Event] = []
    run = load(make_config(data={"teacher_states": "on"}, sampling=DATA_ONLY), tiny, events)
    (warning,) = [event for event in events if isinstance(event, Warned)]
    assert warning.code == "teacher_states_too_large"
    assert "data.teacher_states" in warning.message
    assert kept_states(run.train_rows, run.device) is None
    assert tiny.entries() == []


def test_only_rows_of_the_datas_batches_are_read(make_config: MakeConfig, mixed_rows: Path, cache: FolderCache) -> None:
    """Prompts for the student alone have no states, and held-out rows only where the teacher writes for them."""
    run = load(make_config(data={"path": str(mixed_rows), "responses": "student"}, sampling=DATA_ONLY), cache)
    assert [row.teacher_TD is None for row in run.train_rows] == [row.response_ids is None for row in run.train_rows]
    given = [row.number % 3 != 1 for row in run.held_out.rows]
    assert [row.teacher_TD is None for row in run.held_out.rows] == given
    assert len(run.train_rows[1].response_ids or ()) == len(states(run.train_rows[1]))


def test_a_run_stays_with_what_it_began(make_config: MakeConfig, tmp_path: Path) -> None:
    """A limit, or a wish, that changes between two attempts changes no bit of the run."""
    config = make_config(data={"teacher_states": "on"}, sampling=DATA_ONLY)
    plain = make_config(data={"teacher_states": "off"}, sampling=DATA_ONLY)
    reference, _ = train(config, tmp_path / "reference")
    with pytest.raises(Paused):
        train(config, tmp_path / "paused", pause_at=2 + 5 + 3)
    student, events = train(plain, tmp_path / "paused")
    assert student.weights_sha256 == reference.weights_sha256
    assert "teacher_states" not in phases(events)  # they were there already
    assert train(plain, tmp_path / "plain")[0].weights_sha256 != reference.weights_sha256


def test_states_that_were_removed_meanwhile_are_computed_again(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(data={"teacher_states": "on"}, sampling=DATA_ONLY)
    reference, _ = train(config, tmp_path / "reference")
    with pytest.raises(Paused):
        train(config, tmp_path / "paused", pause_at=2 + 5 + 3)
    cache = states_of(tmp_path / "paused")
    for entry in cache.entries():
        cache.remove(entry.key)
    student, events = train(config, tmp_path / "paused")
    assert phases(events) == {"teacher_states"}
    assert student.weights_sha256 == reference.weights_sha256


def test_what_was_read_before_a_pause_is_not_read_again(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(
        data={"path": str(write_rows(tmp_path / "rows.jsonl", 22, with_response=False)), "dev_rows": 4},
        sampling=DATA_ONLY,
    )
    with pytest.raises(Paused, match="while the teacher was writing"):
        train(config, tmp_path, pause_at=2 + 3)
    states = tmp_path / "checkpoints/.teacher-states/states.bin"
    first = states.read_bytes()
    assert first
    with pytest.raises(Paused):
        train(config, tmp_path, pause_at=2 + 5)
    assert states.read_bytes()[: len(first)] == first
    assert len(states.read_bytes()) > len(first)
    train(config, tmp_path)
    assert not states.parent.exists()
    assert len(states_of(tmp_path).entries()) == 1


def states_of(folder: Path) -> FolderCache:
    return FolderCache(folder / "states", limit_bytes=2**24)


def train(config: DistillConfig, folder: Path, *, pause_at: int | None = None) -> tuple[DistilledStudent, list[Event]]:
    """A run that wishes to pause when it is asked for the `pause_at`-th time."""
    events: list[Event] = []
    asked = iter(range(1, 10**6))
    student = distill(
        config,
        out=folder / "out",
        emit=events.append,
        should_stop=lambda: "pause" if next(asked) == pause_at else None,
        checkpoints=folder / "checkpoints",
        states=states_of(folder),
    )
    return student, events


def test_runs_that_read_no_states_keep_none(make_config: MakeConfig, cache: FolderCache) -> None:
    for changes in ({"losses": [{"kind": "sft"}]}, {"data": {"teacher_states": "off"}}, {"training": {"max_steps": 1}}):
        config = make_config(**{"sampling": DATA_ONLY, **changes})
        run = load(config, cache)
        assert kept_states(run.train_rows, run.device) is None
        assert keeps_states(run.train_rows, config, teacher=run.teacher.model, dtype=run.dtype, cache=cache) is False
    assert cache.entries() == []
