"""Runs and what they measured: one JSON line per finished run, so that a benchmark that was stopped goes on.

Knows what identifies a run. Does not know how it is trained.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from app.core.recipes import RECIPES
from benchmarks.quality.contenders import Contender

Budget = Literal["sweep", "steps", "time"]


@dataclass(frozen=True)
class Run:
    """One training: `sweep` runs are measured on dev rows, `steps` and `time` runs on test rows."""

    scale: str
    regime: str
    contender: Contender
    budget: Budget
    steps: int
    seed: int
    learning_rate: float

    @property
    def key(self) -> str:
        """The same for the same description: a run of an older recipe does not pass for one of a newer."""
        what = [
            self.scale,
            self.regime,
            RECIPES[self.contender.recipe],
            self.contender.sections,
            self.budget == "sweep",
            self.steps,
            self.seed,
            self.learning_rate,
        ]
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]

    def describe(self) -> dict[str, Any]:
        return {
            "scale": self.scale,
            "regime": self.regime,
            "recipe": self.contender.recipe,
            "variant": self.contender.variant,
            "budget": self.budget,
            "steps": self.steps,
            "seed": self.seed,
            "learning_rate": self.learning_rate,
        }


class Records:
    """The file of finished runs. `about` (sizes, models, how good they are) is part of every key: other conditions,
    other runs."""

    def __init__(self, path: Path, *, about: Mapping[str, Any]) -> None:
        self._path = path
        self._about = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()[:8]
        self._known: dict[str, dict[str, Any]] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                record = json.loads(line)
                self._known[record["key"]] = record

    def get(self, run: Run) -> dict[str, Any] | None:
        return self._known.get(self._key(run))

    def add(self, run: Run, measured: Mapping[str, Any]) -> dict[str, Any]:
        record = {"key": self._key(run), **run.describe(), "measured": dict(measured)}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(record) + "\n")
        self._known[record["key"]] = record
        return record

    def _key(self, run: Run) -> str:
        return f"{self._about}-{run.key}"
