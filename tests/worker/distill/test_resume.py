"""A run that is interrupted anywhere and goes on leaves the student of a run that never was, to the last bit."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import Paused
from app.core.events import Event, Resumed, is_training_event, parse_event
from app.core.folder_cache import FolderCache
from app.core.job_config import DistillConfig
from tests.worker.distill.conftest import MakeConfig
from worker.distill.trainer import DistilledStudent, distill
from worker.distill.training_state import read_state
from worker.distill.types import Stop


@dataclass
class Told:
    """What a run told over all its attempts, as a recorder stores it: what comes again after Resumed is dropped."""

    events: list[Event] = field(default_factory=list)
    training: list[Event] = field(default_factory=list)
    _again: int = 0

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Resumed):
            self._again = len(self.training) - event.training_events
        if is_training_event(event):
            if self._again:
                self._again -= 1
                assert course([event]) == course([self.training[-1 - self._again]])
            else:
                self.training.append(event)


def course(events: list[Event]) -> list[dict[str, Any]]:
    """Training events without what is measured in seconds."""
    dumped = [event.model_dump(exclude={"tokens_per_s", "eta_s"}) for event in events]
    for event in dumped:
        if "metrics" in event:
            event["metrics"] = untimed(event["metrics"])
    return dumped


def untimed(metrics: dict[str, float]) -> dict[str, float]:
    return {
        name: x
        for name, x in metrics.items()
        if not name.startswith(("time/", "memory/")) and not name.endswith("_per_s")
    }


class Asked:
    """A `should_stop` that wishes to pause when it is asked for the `at`-th time."""

    def __init__(self, at: int | None = None) -> None:
        self.count = 0
        self._at = at

    def __call__(self) -> Stop | None:
        self.count += 1
        return "pause" if self.count == self._at else None


def run(
    config: DistillConfig, folder: Path, told: Callable[[Event], None], asked: Callable[[], Stop | None]
) -> DistilledStudent:
    return distill(
        config,
        out=folder / "out",
        emit=told,
        should_stop=asked,
        checkpoints=folder / "checkpoints",
        states=FolderCache(folder / "states", limit_bytes=2**20),
    )


@pytest.fixture
def full(make_config: MakeConfig, tiny_rows: Path, tmp_path: Path) -> DistillConfig:
    """Every kind of state at once: warm-up of both models, responses that the teacher writes and others that it reads,
    whose states are kept, replayed samples, SCRG, DAC-KL's own network, spans, accumulation, and evaluations that move
    phi and choose the best."""
    rows = [json.loads(line) for line in tiny_rows.read_text().splitlines()]
    some = [row | {"response": None} if i % 3 == 0 else row for i, row in enumerate(rows)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, some)))
    return make_config(
        data={"path": str(tmp_path / "rows.jsonl")},
        sampling={"dev_loss_margin": 0.0},
        training={"max_steps": 5, "gradient_accumulation": 2, "checkpoint_every": 2, "bucket_by_length": True},
        warmup={"teacher_sft_steps": 2, "student_sft_steps": 2},
    )


def test_a_pause_at_any_moment_changes_nothing(full: DistillConfig, tmp_path: Path) -> None:
    config, asked, reference_told = full, Asked(), Told()
    reference = run(config, tmp_path / "reference", reference_told, asked)
    assert {event.source for event in reference_told.training if event.kind == "step"} >= {"fresh", "replay"}
    assert (tmp_path / "reference/states").is_dir()
    # while loading, in both warm-ups, between batches that the teacher writes and reads, before each step
    assert asked.count == 2 + 2 + 2 + 3 + 2 + 5
    for at in range(1, asked.count + 1):
        told = Told()
        with pytest.raises(Paused):
            run(config, tmp_path / str(at), told, Asked(at))
        student = run(config, tmp_path / str(at), told, Asked())
        assert student.weights_sha256 == reference.weights_sha256, at
        assert (student.step, student.metrics) == (reference.step, reference.metrics)
        assert course(told.training) == course(reference_told.training)


@pytest.mark.parametrize(("kind", "candidates"), [("mixed", 1), ("mixed", 2), ("on_policy", 1)])
def test_other_sources_and_bfloat16_go_on_too(
    kind: str, candidates: int, make_config: MakeConfig, tmp_path: Path
) -> None:
    """Only the pause keeps a checkpoint here: `checkpoint_every` is 0, and the last student is taken."""
    config = make_config(
        data={"teacher_states": "off"},  # no reading ahead in which to pause
        sampling={"kind": kind, "max_new_tokens": 6, "candidates": candidates, "skip_known": True},
        training={"precision": "bfloat16", "checkpoint_every": 0},
        evaluation={"select": "last", "metric": "rouge_l"},
    )
    reference_told, told = Told(), Told()
    reference = run(config, tmp_path / "reference", reference_told, Asked())
    assert not any(event.kind == "checkpoint" for event in reference_told.events)
    with pytest.raises(Paused, match="after step 2 of 4; the checkpoint of training step 2 is kept"):
        run(config, tmp_path / "paused", told, Asked(2 + 3))
    assert run(config, tmp_path / "paused", told, Asked()).weights_sha256 == reference.weights_sha256
    assert course(told.training) == course(reference_told.training)


def test_batches_that_were_drawn_together_are_used_after_a_pause(make_config: MakeConfig, tmp_path: Path) -> None:
    """Generations of three batches, of which every step takes two: some pauses find batches waiting, some find none."""
    config = make_config(
        data={"teacher_states": "off"},
        sampling={"kind": "on_policy", "max_new_tokens": 6, "batches_per_generation": 3},
        training={"gradient_accumulation": 2, "checkpoint_every": 0},
        evaluation={"select": "last"},
    )
    reference_told, waited = Told(), []
    reference = run(config, tmp_path / "reference", reference_told, Asked())
    for step in (1, 2, 3):
        folder, told = tmp_path / str(step), Told()
        with pytest.raises(Paused, match=f"after step {step} of 4"):
            run(config, folder, told, Asked(2 + 1 + step))
        waited.append(len(read_state(folder / f"checkpoints/step-{step:08d}")["run"]["stepper"]["waiting"]))
        assert run(config, folder, told, Asked()).weights_sha256 == reference.weights_sha256
        assert course(told.training) == course(reference_told.training)
    assert waited == [1, 2, 0]


def test_an_altered_checkpoint_is_skipped_and_nothing_changes(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(training={"max_steps": 5, "checkpoint_every": 1}, evaluation={"every_steps": 3})
    reference_told, told = Told(), Told()
    reference = run(config, tmp_path / "reference", reference_told, Asked())
    with pytest.raises(Paused):
        run(config, tmp_path / "paused", told, Asked(2 + 5))
    newest = tmp_path / "paused/checkpoints/step-00000004/state.safetensors"
    raw = bytearray(newest.read_bytes())
    raw[-1] ^= 1
    newest.write_bytes(raw)
    student = run(config, tmp_path / "paused", told, Asked())
    assert [event.step for event in told.events if isinstance(event, Resumed)] == [3]
    assert [event.code for event in told.events if event.kind == "warning"] == ["checkpoint_skipped"]
    assert (student.weights_sha256, student.metrics) == (reference.weights_sha256, reference.metrics)
    assert course(told.training) == course(reference_told.training)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kills_at_random_moments_change_nothing(full: DistillConfig, tmp_path: Path) -> None:
    """`kill -9` while files are opened, renamed and removed, and while nothing of the kind is going on."""
    seed = 20
    print(f"seed {seed}")
    chance = random.Random(seed)
    training = full.training.model_copy(update={"max_steps": 10, "checkpoint_every": 1})
    config = full.model_copy(update={"training": training})
    told = Told()
    reference = run(config, tmp_path / "reference", told, Asked())
    (tmp_path / "config.json").write_text(config.model_dump_json())
    out = tmp_path / "out"
    for _ in range(3):
        call = _call(tmp_path, die_at=chance.randint(1, 90))
        killed = subprocess.run(call, capture_output=True, text=True, timeout=200)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    _kill_in_a_step(_call(tmp_path, die_at=0), after_s=chance.uniform(0, 0.3))
    last = subprocess.run(_call(tmp_path, die_at=0), capture_output=True, text=True, timeout=200)
    assert last.returncode == 0, last.stderr
    assert "going on after step" in last.stdout
    assert not (out / "checkpoints").exists()

    events = [parse_event(json.loads(line)) for line in (out / "events.jsonl").read_text().splitlines()]
    assert course([event for event in events if is_training_event(event)]) == course(told.training)
    exported = events[-1]
    assert exported.kind == "exported"
    assert (exported.weights_sha256, exported.step) == (reference.weights_sha256, reference.step)
    cards = [
        json.loads((folder / "student/distillation.json").read_text()) for folder in (out, tmp_path / "reference/out")
    ]
    assert cards[0]["metrics"] == cards[1]["metrics"] == reference.metrics


def _call(folder: Path, *, die_at: int) -> list[str]:
    module = "tests.worker.distill.killed_run"
    return [sys.executable, "-m", module, str(die_at), str(folder / "config.json"), str(folder / "out")]


def _kill_in_a_step(call: list[str], *, after_s: float) -> None:
    with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            assert any(line.startswith("step ") for line in process.stdout)
            time.sleep(after_s)  # where it is then does not matter
        finally:
            process.kill()
