"""A run's events as lines of a file, over all its attempts: no gap, and no step twice.

Knows events and lines of JSON. Does not know runs.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from app.core.events import Event, Resumed, is_training_event, parse_event


class EventLog:
    """Writes each event at once. Call it with events; close it at the end.

    What an earlier attempt wrote stays until this one says where it goes on: Resumed cuts the lines behind that place,
    and a first step without it cuts them all.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._before = _whole_lines(path)
        self._now: list[str] = []
        self._is_settled = not self._before
        self._file = path.open("a" if self._before else "w", encoding="utf-8", buffering=1)

    def __call__(self, event: Event) -> None:
        line = event.model_dump_json()
        if not self._is_settled:
            self._now.append(line)
            if isinstance(event, Resumed):
                self._settle(_up_to(self._before, event.training_events))
                return
            if is_training_event(event):
                self._settle([])
                return
        self._file.write(line + "\n")

    def close(self) -> None:
        self._file.close()

    def _settle(self, kept: list[str]) -> None:
        """The file is then `kept` and this attempt's lines. Nothing is lost if the process is killed meanwhile."""
        self._file.close()
        whole = self._path.with_name(f".tmp-{self._path.name}")
        with whole.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in (*kept, *self._now))
            file.flush()
            os.fsync(file.fileno())
        whole.rename(self._path)
        self._file = self._path.open("a", encoding="utf-8", buffering=1)
        self._is_settled = True


def _up_to(lines: list[str], training_events: int) -> list[str]:
    """The lines before the training event with that number, counted from 0."""
    seen = 0
    for i, line in enumerate(lines):
        if is_training_event(parse_event(json.loads(line))):
            if seen == training_events:
                return lines[:i]
            seen += 1
    return lines


def _whole_lines(path: Path) -> list[str]:
    """The lines of an earlier attempt that are events; what a killed one left half written is not."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    whole = []
    for line in lines:
        try:
            parse_event(json.loads(line))
        except ValueError:
            break
        whole.append(line)
    return whole
