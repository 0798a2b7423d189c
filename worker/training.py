"""The one call that trains a student, and what it gives back: the same in this process and in one of its own.

Knows shapes only, and imports torch no sooner than it trains. Does not know jobs, databases or processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from app.core.errors import OutOfMemory
from app.core.events import Emit
from app.core.folder_cache import FolderCache
from app.core.job_config import DistillConfig

Stop = Literal["cancel", "pause"]


class KilledForMemory(OutOfMemory):
    """The machine's kernel ended the process: maybe for what others used, so another try may succeed."""


@dataclass(frozen=True, kw_only=True)
class TrainedStudent:
    """A Hugging Face folder with the weights after `step`, metrics `before/...` and `after/...` training, and the
    folder of the teacher if the run tuned it."""

    folder: Path
    parameters: int
    weights_sha256: str
    metrics: Mapping[str, float]
    step: int
    teacher_folder: Path | None


class Train(Protocol):
    """Trains what `config` describes; see `worker.distill.trainer.distill` for arguments and errors. `checkpoints` is
    where this run keeps its own, and goes on from the newest."""

    def __call__(
        self,
        config: DistillConfig,
        *,
        out: Path,
        checkpoints: Path,
        emit: Emit,
        should_stop: Callable[[], Stop | None],
    ) -> TrainedStudent: ...


def train_here(
    config: DistillConfig,
    *,
    out: Path,
    checkpoints: Path,
    emit: Emit,
    should_stop: Callable[[], Stop | None],
    states: FolderCache | None = None,
) -> TrainedStudent:
    """Trains in this process; `states` is where states of its teacher are kept."""
    from worker.distill.trainer import distill

    student = distill(config, out=out, emit=emit, should_stop=should_stop, checkpoints=checkpoints, states=states)
    return TrainedStudent(
        folder=student.folder,
        parameters=student.parameters,
        weights_sha256=student.weights_sha256,
        metrics=student.metrics,
        step=student.step,
        teacher_folder=student.teacher_folder,
    )
