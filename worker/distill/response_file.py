"""The teacher's responses as they are written, so that a killed run does not write them again.

Knows places in a list and token ids as lines of JSON. Does not know rows or models.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from worker.distill.disk import telling_disk_full

Written = tuple[int, tuple[int, ...]]


class ResponseFile:
    """Lines of [place, ids] behind a first line that says what they belong to (`about`); others' lines are dropped."""

    def __init__(self, path: Path, *, about: str) -> None:
        self._path = path
        self._about = json.dumps(about)

    def read(self) -> list[Written]:
        """What is there, in the order in which it was written. A half-written last line does not count."""
        lines = self._path.read_text(encoding="utf-8", errors="replace").split("\n") if self._path.exists() else []
        if not lines or lines[0] != self._about:
            return []
        written: list[Written] = []
        for line in lines[1:-1]:
            try:
                place, ids = json.loads(line)
            except ValueError:
                break
            written.append((place, tuple(ids)))
        return written

    def begin(self, kept: Sequence[Written]) -> None:
        """The file then has `kept` alone. Raises DiskFull, as `add` does."""
        whole = self._path.with_name(f".tmp-{self._path.name}")
        whole.write_text(self._about + "\n", encoding="utf-8")
        self._append(whole, kept)
        whole.rename(self._path)

    def add(self, written: Sequence[Written]) -> None:
        """These are on the disk when it returns."""
        self._append(self._path, written)

    def _append(self, path: Path, written: Sequence[Written]) -> None:
        with telling_disk_full("the teacher's responses", path.parent), path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps([place, ids]) + "\n" for place, ids in written)
            file.flush()
            os.fsync(file.fileno())
