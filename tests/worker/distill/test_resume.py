"""A run that is interrupted anywhere and goes on leaves the student of a run that never was, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import Paused
from app.core.events import Event, Resumed, is_training_event
from app.core.job_config import DistillConfig
from tests.worker.distill.conftest import MakeConfig
from worker.distill.trainer import DistilledStudent, distill
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
    return {name: x for name, x in metrics.items() if not name.startswith("time/") and not name.endswith("_per_s")}


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
    return distill(config, out=folder / "out", emit=told, should_stop=asked, checkpoints=folder / "checkpoints")


FULL: dict[str, Any] = {
    "training": {"max_steps": 5, "gradient_accumulation": 2, "checkpoint_every": 2},
    "warmup": {"teacher_sft_steps": 2, "student_sft_steps": 2},
}


def test_a_pause_at_any_moment_changes_nothing(make_config: MakeConfig, tmp_path: Path) -> None:
    config, asked, reference_told = make_config(**FULL), Asked(), Told()
    reference = run(config, tmp_path / "reference", reference_told, asked)
    assert {event.source for event in reference_told.training if event.kind == "step"} >= {"fresh", "replay"}
    assert asked.count == 2 + 2 + 2 + 5  # while loading, then before each step
    for at in range(1, asked.count + 1):
        told = Told()
        with pytest.raises(Paused):
            run(config, tmp_path / str(at), told, Asked(at))
        student = run(config, tmp_path / str(at), told, Asked())
        assert student.weights_sha256 == reference.weights_sha256, at
        assert (student.step, student.metrics) == (reference.step, reference.metrics)
        assert course(told.training) == course(reference_told.training)
