"""In which order the runs of one scale are made: sweep, equal steps, equal time.

Knows contenders, budgets and records. Does not know models: `execute` trains and measures one run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.quality.contenders import Contender
from benchmarks.quality.records import Budget, Records, Run

Execute = Callable[[Run], Mapping[str, Any]]
SWEEP_MEASURE = "eval/exact_match"


@dataclass(frozen=True)
class Plan:
    """`leaders` compete in every regime and budget, `others` (ablations, controls) at equal steps in `others_in`."""

    scale: str
    regimes: tuple[str, ...]
    leaders: Sequence[Contender]
    others: Sequence[Contender]
    others_in: tuple[str, ...]
    learning_rates: tuple[float, ...]
    steps: int
    sweep_steps: int
    seeds: int
    time_regimes: tuple[str, ...]


class Bench:
    """Makes the runs of a plan that `records` does not have yet, and remembers all of them in order."""

    def __init__(self, plan: Plan, *, records: Records, execute: Execute, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._records = records
        self._execute = execute
        self._say = say
        self.done: list[Mapping[str, Any]] = []

    def all_runs(self) -> list[Mapping[str, Any]]:
        """The sweep in the first regime, whose learning rates serve the others; then equal steps and equal time, seed
        by seed, so that a benchmark that was stopped has whole seeds."""
        plan = self._plan
        rates = {contender.recipe: self._best_rate(plan.regimes[0], contender) for contender in plan.leaders}
        for seed in range(plan.seeds):
            for regime in plan.regimes:
                for contender in self._contenders(regime):
                    self._run(regime, contender, "steps", plan.steps, seed, rates[contender.recipe])
            for regime in plan.time_regimes:
                seconds = {contender.recipe: self._seconds(regime, contender) for contender in plan.leaders}
                for contender in plan.leaders:
                    steps = round(plan.steps * max(seconds.values()) / seconds[contender.recipe])
                    self._run(regime, contender, "time", steps, seed, rates[contender.recipe])
        return self.done

    def _contenders(self, regime: str) -> Iterator[Contender]:
        yield from self._plan.leaders
        if regime in self._plan.others_in:
            yield from self._plan.others

    def _best_rate(self, regime: str, contender: Contender) -> float:
        """The learning rate with the best dev measure; the smaller one of equals."""
        rates = self._plan.learning_rates
        if len(rates) == 1:
            return rates[0]
        found = {
            rate: self._run(regime, contender, "sweep", self._plan.sweep_steps, 0, rate)[SWEEP_MEASURE]
            for rate in sorted(rates)
        }
        return max(found, key=found.__getitem__)

    def _seconds(self, regime: str, contender: Contender) -> float:
        """Processor time of the contender's first run at equal steps."""
        wanted = (regime, contender.recipe, contender.variant, "steps", 0)
        return next(
            record["measured"]["seconds"]
            for record in self.done
            if tuple(record[name] for name in ("regime", "recipe", "variant", "budget", "seed")) == wanted
        )

    def _run(
        self, regime: str, contender: Contender, budget: Budget, steps: int, seed: int, rate: float
    ) -> Mapping[str, Any]:
        run = Run(self._plan.scale, regime, contender, budget, steps, seed, rate)
        record = self._records.get(run)
        if record is None:
            record = self._records.add(run, self._execute(run))
            shown = next(name for name in (SWEEP_MEASURE, "eval/rouge_l") if name in record["measured"])
            what = f"{regime} {contender.name} {budget} seed {seed} lr {rate:g} steps {steps}"
            self._say(f"{what}: {shown} {record['measured'][shown]:.3f}")
        # A run may serve two budgets (the slowest recipe's): its record is listed under the one that is asked for.
        self.done.append({**record, "budget": budget})
        return record["measured"]
