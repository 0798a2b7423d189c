"""Checkpoints as folders: named by phase and step, complete or not there, checked by hash, the old ones removed.

Knows names, manifests and files. Does not know what is in the files (`training_state.py` does), nor torch: whoever only
lists checkpoints need not load it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from app.core.events import TrainedPhase
from worker.distill.disk import FreeBytes, free_bytes, need_space, new_folder, remove_folder, remove_unfinished

FORMAT = 1
MANIFEST = "manifest.json"
_ALTERED = ".altered-"
# In their order.
PHASES: tuple[TrainedPhase, ...] = get_args(TrainedPhase)
# What a phase's folders are called; those of the training itself only by their step.
_PREFIXES: Mapping[TrainedPhase, str] = {phase: phase for phase in PHASES} | {"training": "step"}
_MARGIN = 2**20  # bytes for manifest and folders


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What a checkpoint says of the run: after `step` steps of `phase` it had told `training_events` training events,
    and step `best_step` of the training was its best."""

    phase: TrainedPhase
    step: int
    training_events: int = 0
    best_step: int | None = None

    @property
    def name(self) -> str:
        return f"{_PREFIXES[self.phase]}-{self.step:08d}"

    @property
    def order(self) -> tuple[int, int]:
        return PHASES.index(self.phase), self.step


@dataclass(frozen=True, kw_only=True)
class CheckpointInfo:
    """One complete checkpoint. `best`: the newest checkpoint names it as the run's best."""

    moment: Moment
    path: Path
    bytes: int
    best: bool

    @property
    def step(self) -> int:
        return self.moment.step

    @property
    def phase(self) -> TrainedPhase:
        return self.moment.phase

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return _manifest(self.path)


def complete_checkpoints(folder: Path) -> list[CheckpointInfo]:
    """The checkpoints in `folder` that have every file they list, in its size; oldest first. Contents are not read."""
    found: list[tuple[Moment, Path, int]] = []
    for path in folder.glob(f"[!.]*/{MANIFEST}"):
        try:
            manifest = _manifest(path.parent)
            moment = Moment(**manifest["moment"])
            sizes = {name: file["bytes"] for name, file in manifest["files"].items()}
            if path.parent.name == moment.name and all(
                (path.parent / name).stat().st_size == size for name, size in sizes.items()
            ):
                found.append((moment, path.parent, sum(sizes.values()) + path.stat().st_size))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # torn, altered or no checkpoint of ours
    found.sort(key=lambda entry: entry[0].order)
    best = best_name(found[-1][0]) if found else None
    return [
        CheckpointInfo(moment=moment, path=path, bytes=size, best=moment.name == best) for moment, path, size in found
    ]


def best_name(moment: Moment) -> str | None:
    """The name of the checkpoint that has the weights of the best step so far."""
    return None if moment.best_step is None else Moment(phase="training", step=moment.best_step).name


class CheckpointFolder:
    """Where one run keeps its checkpoints: the newest `keep_last`, and the best that each of these knows."""

    def __init__(self, path: Path, *, keep_last: int, free: FreeBytes = free_bytes) -> None:
        self.path = path
        self._keep_last = keep_last
        self._free = free
        path.mkdir(parents=True, exist_ok=True)
        remove_unfinished(path)

    def save(
        self, moment: Moment, *, about: Mapping[str, Any], needed_bytes: int, write: Callable[[Path], None]
    ) -> CheckpointInfo:
        """A checkpoint of what `write` puts into the folder that it is given, about `needed_bytes`. The manifest, with
        `about` in it, comes last; older checkpoints go once the new one is in place.

        Raises DiskFull; then no checkpoint was removed and nothing of the new one is left.
        """
        what = f"the checkpoint of {moment.phase} step {moment.step}"
        need_space(needed_bytes + _MARGIN, self.path, what, free=self._free)
        target = self.path / moment.name
        with new_folder(target, what) as folder:
            write(folder)
            files = {path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)} for path in folder.iterdir()}
            manifest = {"format": FORMAT, "moment": asdict(moment), **about, "files": files}
            (folder / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        self._remove_old(moment)
        return next(info for info in complete_checkpoints(self.path) if info.path == target)

    def newest(self, *, skipped: Callable[[str], None]) -> CheckpointInfo | None:
        """The newest checkpoint whose contents are what was written. Those that are not are moved out of the way, and
        `skipped` is told why."""
        for path in self.path.glob("[!.]*"):
            if path.is_dir() and self._is_named_like_one(path) and path not in self._complete():
                self._set_aside(path, "it is torn: a file is missing or not of its size", skipped)
        while infos := complete_checkpoints(self.path):
            problem = _problem(infos[-1])
            if problem is None:
                return infos[-1]
            self._set_aside(infos[-1].path, problem, skipped)
        return None

    def after(self, step: int) -> CheckpointInfo | None:
        """The checkpoint after `step` of the training, if it is there and whole."""
        found = [info for info in complete_checkpoints(self.path) if info.phase == "training" and info.step == step]
        return next((info for info in found if _problem(info) is None), None)

    def _complete(self) -> set[Path]:
        return {info.path for info in complete_checkpoints(self.path)}

    def _is_named_like_one(self, path: Path) -> bool:
        prefix, _, number = path.name.rpartition("-")
        return prefix in _PREFIXES.values() and number.isdigit()

    def _set_aside(self, path: Path, why: str, skipped: Callable[[str], None]) -> None:
        aside = path.with_name(f"{_ALTERED}{path.name}")
        remove_folder(aside)
        path.rename(aside)
        skipped(f"the checkpoint {path.name} is skipped: {why}")

    def _remove_old(self, newest: Moment) -> None:
        infos = [info for info in complete_checkpoints(self.path) if info.moment.order <= newest.order]
        kept = infos[-self._keep_last :]
        names = {info.path.name for info in kept} | {best_name(info.moment) for info in kept}
        for info in infos:
            if info.path.name not in names:
                remove_folder(info.path)
        for path in self.path.glob(f"{_ALTERED}*"):
            remove_folder(path)


def _problem(info: CheckpointInfo) -> str | None:
    """Why a complete checkpoint cannot be used, if so: its contents are read."""
    if info.manifest["format"] != FORMAT:
        return f"another version wrote it, in format {info.manifest['format']} and not {FORMAT}"
    for name, file in info.manifest["files"].items():
        if sha256_of(info.path / name) != file["sha256"]:
            return f"{name} is not what was written: its SHA-256 is another"
    return None


def _manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / MANIFEST).read_text(encoding="utf-8"))


def sha256_of(path: Path) -> str:
    """Of a file's contents."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
