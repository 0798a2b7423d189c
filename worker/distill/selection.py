"""Which step's weights a run leaves: the best by a held-out measure, or the last.

Knows numbers. Does not know weights, or where they are kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from app.core.errors import InvalidRequest
from app.core.job_config import BETTER, EvaluationConfig
from worker.distill.training_state import State


@dataclass(frozen=True)
class Judged:
    """An evaluation: the step that it follows, and what was measured."""

    step: int = 0
    metrics: dict[str, float] = field(default_factory=dict)


class Selection:
    """The `latest` evaluation, and the `best` so far; with `select: last` that is the latest."""

    def __init__(self, config: EvaluationConfig) -> None:
        self._name = f"eval/{config.metric}"
        self._sign = 1 if BETTER[config.metric] == "higher" else -1
        self._by_metric = config.select == "best"
        self.best = self.latest = Judged()

    def check(self, metrics: Mapping[str, float]) -> None:
        """Raises InvalidRequest when the run's evaluations do not have the measure that it should be judged by."""
        if self._by_metric and self._name not in metrics:
            raise InvalidRequest(
                f"no evaluation of this run has {self._name} (they have {', '.join(sorted(metrics))}); choose another "
                "metric, or set evaluation.select to last",
                "evaluation.metric",
            )

    def observe(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Whether these weights have to be kept, for they are the best so far. Of equals the later ones are: they were
        trained for longer. Steps count from 1: a student that was never trained is not chosen."""
        self.latest = Judged(step, dict(metrics))
        if self._by_metric and self.best.step and self._rank(metrics) < self._rank(self.best.metrics):
            return False
        self.best = self.latest
        return self._by_metric

    @property
    def best_step(self) -> int | None:
        """The step whose weights have to be kept to the end, if there is one."""
        return self.best.step if self._by_metric and self.best.step else None

    def state(self) -> State:
        return {name: [judged.step, judged.metrics] for name, judged in (("best", self.best), ("latest", self.latest))}

    def load(self, state: State) -> None:
        self.best, self.latest = Judged(*state["best"]), Judged(*state["latest"])

    def _rank(self, metrics: Mapping[str, float]) -> float:
        value = metrics[self._name]
        return -math.inf if math.isnan(value) else self._sign * value
