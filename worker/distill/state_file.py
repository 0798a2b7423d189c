"""Responses with the teacher's states that predict their tokens, in a folder: batch by batch, whole at the end.

Knows places in a list, token ids and rows of numbers. Does not know models, or what the folder is called.

    responses.jsonl   what it belongs to, and [place, ids] of every response (`response_file.py`)
    states.bin        a state for every token, response behind response in that order, as the computer holds them
    manifest.json     size and SHA-256 of both: written last, so what has none is not whole
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from worker.distill.checkpoint import MANIFEST, sha256_of
from worker.distill.disk import telling_disk_full
from worker.distill.response_file import ResponseFile, Written

RESPONSES, STATES = "responses.jsonl", "states.bin"


class StateFile:
    """A folder in the making, about `about`. A state is `width` numbers of `dtype`."""

    def __init__(self, folder: Path, *, about: str, width: int, dtype: torch.dtype) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._lines = ResponseFile(folder / RESPONSES, about=about)
        self._bytes_per_token = width * dtype.itemsize

    def read(self) -> list[Written]:
        """The responses whose states are there too, in the order in which they were added."""
        path = self.folder / STATES
        tokens = path.stat().st_size // self._bytes_per_token if path.exists() else 0
        found = []
        for place, ids in self._lines.read():
            tokens -= len(ids)
            if tokens < 0:
                break
            found.append((place, ids))
        return found

    def begin(self, known: Sequence[Written]) -> None:
        """The folder then has `known` alone, the first of what `read` gave. Raises DiskFull, as `add` does."""
        (self.folder / MANIFEST).unlink(missing_ok=True)
        with (self.folder / STATES).open("ab") as file:
            file.truncate(sum(len(ids) for _, ids in known) * self._bytes_per_token)
        self._lines.begin(known)

    def add(self, written: Sequence[Written], states_ND: Tensor) -> None:
        """These are on the disk when it returns: the states first, for a line says that they are there."""
        raw = states_ND.detach().cpu().contiguous().view(torch.uint8).numpy()
        assert raw.nbytes == sum(len(ids) for _, ids in written) * self._bytes_per_token, "a state for every token"
        with telling_disk_full("the teacher's states", self.folder), (self.folder / STATES).open("ab") as file:
            file.write(raw.data)
            file.flush()
            os.fsync(file.fileno())
        self._lines.add(written)

    def finish(self) -> None:
        """All is there."""
        files = {
            path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
            for path in (self.folder / RESPONSES, self.folder / STATES)
        }
        (self.folder / MANIFEST).write_text(json.dumps(files, indent=1), encoding="utf-8")


def load_states(folder: Path, *, about: str, width: int, dtype: torch.dtype) -> list[tuple[tuple[int, ...], Tensor]]:
    """(ids, states [T, D]) by place, from a whole folder; the states are views of the file, read when they are used.

    Raises ValueError when the folder is about something else, or is gone: others may remove it at any moment.
    """
    try:
        lines = ResponseFile(folder / RESPONSES, about=about).read()
        tokens = sum(len(ids) for _, ids in lines)
        if sorted(place for place, _ in lines) != list(range(len(lines))) or (
            tokens * width * dtype.itemsize != (folder / STATES).stat().st_size
        ):
            raise ValueError("it is about something else")
        flat = torch.empty(0, dtype=dtype)
        if tokens:
            flat = torch.from_file(str(folder / STATES), shared=False, size=tokens * width, dtype=dtype)
    except (OSError, RuntimeError) as error:  # torch's own, where the file cannot be mapped
        raise ValueError(f"a file is missing or torn: {error!r}") from error
    parts_TD = flat.view(tokens, width).split([len(ids) for _, ids in lines])
    by_place = {place: (ids, part_TD) for (place, ids), part_TD in zip(lines, parts_TD, strict=True)}
    return [by_place[place] for place in range(len(lines))]


def check_states(folder: Path) -> None:
    """Raises ValueError when the folder is not what was written: everything is read for that."""
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        for name in (RESPONSES, STATES):
            if (folder / name).stat().st_size != files[name]["bytes"]:
                raise ValueError(f"{name} is not of its size")
            if sha256_of(folder / name) != files[name]["sha256"]:
                raise ValueError(f"{name} is not what was written: its SHA-256 is another")
    except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"a file is missing or torn: {error!r}") from error
