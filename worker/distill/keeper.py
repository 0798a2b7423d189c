"""One run's memory beyond its process: where it goes on, and what it keeps on the way.

Knows a run's description, its data's fingerprint and its checkpoints. Does not know what its state consists of.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from app.core.errors import CheckpointMismatch
from app.core.events import CheckpointSaved, Emit, Event, Resumed, TrainedPhase, Warned, is_training_event
from app.core.job_config import DistillConfig
from worker.distill.checkpoint import PHASES, CheckpointFolder, Moment
from worker.distill.data import Row
from worker.distill.disk import need_space, new_folder
from worker.distill.export import export_model, read_card
from worker.distill.response_file import ResponseFile
from worker.distill.training_state import (
    State,
    random_state,
    read_state,
    read_weights,
    set_random_state,
    set_tensors,
    size_of,
    trained_tensors,
    write_state,
)

# Settings that may change between two attempts: they say how often state is kept and where the (hashed) rows lie; and
# one that a run which goes on takes as it began (`keeps_states`).
_FREE = ("training.checkpoint_every", "training.keep_last", "data.path", "data.teacher_states")


class Teller:
    """An `emit` that counts the training events that go through it."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self.training_events = 0

    def __call__(self, event: Event) -> None:
        self.training_events += is_training_event(event)
        self._emit(event)


class Keeper:
    """Checkpoints in `folder`; without one nothing outlives the process, and only the best weights are remembered.

    A teacher that the run tunes is kept beside the checkpoints, or else in `teacher_folder`. Raises CheckpointMismatch
    when `folder` has what another run kept.
    """

    def __init__(
        self, folder: Path | None, *, config: DistillConfig, tell: Teller, teacher_folder: Path | None = None
    ) -> None:
        self._config = config
        self._tell = tell
        self._about: dict[str, Any] = {"config": config.model_dump(mode="json")}
        self._remembered: dict[str, Tensor] = {}
        self._folder = CheckpointFolder(folder, keep_last=config.training.keep_last) if folder else None
        self.last = self._folder.newest(skipped=self._tell_skipped) if self._folder else None
        self._point = self.last
        self.teacher_folder = folder / "teacher" if folder else teacher_folder
        if self._point:
            _check_config(self._point.manifest["config"], config, folder=self._point.path)

    @property
    def has_folder(self) -> bool:
        return self._folder is not None

    def is_behind(self, phase: TrainedPhase) -> bool:
        """Whether the run goes on in a later phase."""
        return self._point is not None and PHASES.index(self._point.phase) > PHASES.index(phase)

    def tuned_teacher(self) -> Path | None:
        """The folder of the teacher that an earlier attempt of this run has tuned, if it got so far."""
        if self._folder is None or self.teacher_folder is None or (card := read_card(self.teacher_folder)) is None:
            return None
        _check_config(card["config"], self._config, folder=self.teacher_folder)
        return self.teacher_folder

    def keep_teacher(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raises DiskFull."""
        if self.teacher_folder is not None:
            export_model(model, tokenizer, self.teacher_folder, card=self._about)

    def place_teacher(self, folder: Path) -> Path:
        """A copy of the tuned teacher in `folder`, unless it is there already. Raises DiskFull."""
        kept = self.teacher_folder
        assert kept is not None, "the run has tuned its teacher"
        if kept != folder:
            what = "the tuned teacher"
            need_space(sum(path.stat().st_size for path in kept.iterdir()), folder.parent, what)
            with new_folder(folder, what) as temporary:
                shutil.copytree(kept, temporary, dirs_exist_ok=True)
        return folder

    def responses(self) -> ResponseFile | None:
        """Where the teacher's responses are kept, for `identify`'s rows."""
        if self._folder is None:
            return None
        settings = [(name, value) for name, value in _leaves(self._about["config"]) if name not in _FREE]
        return ResponseFile(self._folder.path / "responses.jsonl", about=_fingerprint([*settings, self._about["rows"]]))

    def keeps_states(self, now: bool) -> bool:
        """Whether the run trains on states of its teacher that are kept: as it began, else as `now` says. They are
        rounded otherwise than those of a pass at every step, and a run stays what it is."""
        keeps = bool(self._point.manifest.get("teacher_states", now)) if self._point else now
        self._about["teacher_states"] = keeps
        return keeps

    @property
    def states_scratch(self) -> Path | None:
        """Where states are gathered until they are complete."""
        return self._folder.path / ".teacher-states" if self._folder else None

    def identify(self, rows: Sequence[Row], *, device: torch.device, dtype: torch.dtype) -> None:
        """What the run trains on, and in what. Raises CheckpointMismatch when it began with other rows; another machine
        is only said, for its numbers round differently."""
        machine = {"torch": torch.__version__, "device": device.type, "precision": str(dtype).removeprefix("torch.")}
        fingerprint = _fingerprint((row.prompt_ids, row.response_ids, row.references) for row in rows)
        self._about |= {"rows": fingerprint, "machine": machine}
        if self._point is None:
            return
        began = self._point.manifest
        if began["rows"] != self._about["rows"]:
            raise CheckpointMismatch(
                f"the rows are not those that {self._point.path} was trained on; give it the same data and tokenizer, "
                "or start anew without its checkpoints",
                "data",
            )
        if began["machine"] != machine:
            words = f"the run began with {_listed(began['machine'])} and goes on with {_listed(machine)}: it will not "
            self._tell(Warned(code="resumed_elsewhere", message=f"{words}be the same to the last bit"))

    def restore(self, phase: TrainedPhase, model: nn.Module) -> tuple[int, State] | None:
        """If the run goes on in `phase`: sets the model's weights and the process's random numbers, says Resumed, and
        returns the step behind which it goes on with the state that was saved there."""
        if self._point is None or self._point.phase != phase:
            return None
        moment = self._point.moment
        set_tensors(model, read_weights(self._point.path))
        state = read_state(self._point.path)
        set_random_state(state["random"])
        self._tell.training_events = moment.training_events
        self._tell(Resumed(step=moment.step, training_events=moment.training_events, phase=phase))
        return moment.step, state["run"]

    def save(
        self, phase: TrainedPhase, step: int, model: nn.Module, state: State, best_step: int | None = None
    ) -> None:
        """A checkpoint, unless there is no folder or the newest checkpoint is of this step. Raises DiskFull."""
        moment = Moment(phase=phase, step=step, training_events=self._tell.training_events, best_step=best_step)
        if self._folder is None or (self.last is not None and self.last.moment.name == moment.name):
            return
        weights = trained_tensors(model)
        whole = {"random": random_state(), "run": state}
        self.last = self._folder.save(
            moment,
            about=self._about,
            needed_bytes=size_of(weights) + size_of(whole),
            write=lambda folder: write_state(folder, weights=weights, state=whole),
        )
        self._tell(CheckpointSaved(step=step, bytes=self.last.bytes, best=self.last.best, phase=phase))

    def remember(self, model: nn.Module) -> None:
        """Keeps the weights in the host's memory: what a run without a folder has for its best step."""
        self._remembered = {
            name: tensor.detach().to("cpu", copy=True) for name, tensor in trained_tensors(model).items()
        }

    def best_weights(self, step: int) -> dict[str, Tensor] | None:
        """The weights after `step` of the training; None when their checkpoint was altered or is gone."""
        if self._folder is None:
            return self._remembered
        info = self._folder.after(step)
        return read_weights(info.path) if info else None

    def kept(self) -> str:
        """The newest checkpoint, in the words that end an error's message."""
        return f"; the checkpoint of {self.last.phase} step {self.last.step} is kept" if self.last else ""

    def _tell_skipped(self, why: str) -> None:
        self._tell(Warned(code="checkpoint_skipped", message=why))


def _check_config(began_with: Any, config: DistillConfig, *, folder: Path) -> None:
    with suppress(ValidationError):  # a setting that is newer than what was kept was at its default there
        began_with = DistillConfig.stored(began_with).model_dump(mode="json")
    began, now = dict(_leaves(began_with)), dict(_leaves(config.model_dump(mode="json")))
    other = [name for name in (began | now) if name not in _FREE and began.get(name) != now.get(name)]
    if other:
        changes = "; ".join(f"{name} was {began.get(name)!r} and is {now.get(name)!r}" for name in other)
        raise CheckpointMismatch(
            f"{folder} was kept by a run with other settings ({changes}); go on with those it began with, or start "
            "anew without its checkpoints",
            other[0],
        )


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of everything in a job description that is no section."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and any(isinstance(inner, Mapping) for inner in value):
        for i, inner in enumerate(value):
            yield from _leaves(inner, f"{path}.{i}")
    else:
        yield path, value


def _fingerprint(parts: Iterable[object]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(repr(part).encode())
    return digest.hexdigest()


def _listed(machine: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in machine.items())
