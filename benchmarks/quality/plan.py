"""In which order the runs of one scale are made: sweep, equal steps, equal time, what matters most first.

Knows contenders, budgets and records. Does not know models: `execute` trains and measures one run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.quality.contenders import OURS, Contender
from benchmarks.quality.records import Budget, Records, Run

Execute = Callable[[Run], Mapping[str, Any]]
SWEEP_MEASURE = "eval/exact_match"
# Equal compute time as it is when somebody else has paid for the responses that the teacher wrote.
FREE_LABELS = "free_labels"


@dataclass(frozen=True)
class Plan:
    """`leaders` compete in every regime; in the first one also with `ablations` at equal steps, and for fewer seeds
    among themselves at equal time (`time_seeds`, 0: not at all) and with `controls` at equal steps."""

    scale: str
    regimes: tuple[str, ...]
    leaders: Sequence[Contender]
    ablations: Sequence[Contender]
    controls: Sequence[Contender]
    learning_rates: tuple[float, ...]
    steps: int
    sweep_steps: int
    seeds: int
    time_seeds: int
    control_seeds: int


class Bench:
    """Makes the runs of a plan that `records` does not have yet, and remembers all of them in order.

    Once `may_start` says no, runs that are not recorded are left out, so that there is a table whenever it stops.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        records: Records,
        execute: Execute,
        say: Callable[[str], None],
        may_start: Callable[[], bool] = lambda: True,
    ) -> None:
        self._plan = plan
        self._records = records
        self._execute = execute
        self._say = say
        self._may_start = may_start
        self.done: list[Mapping[str, Any]] = []
        self.left_out = 0

    def all_runs(self) -> list[Mapping[str, Any]]:
        """What `Plan` says, in that order: first the leaders and `ablations` in the first regime. Every regime begins
        with a sweep of its own, for a rate that is best on few rows need not be best on many."""
        plan = self._plan
        first, *others = plan.regimes
        rates = self._best_rates(first, plan.leaders)
        self._at_equal_steps(first, plan.leaders, rates, plan.seeds)
        self._at_equal_steps(first, plan.ablations, rates, plan.seeds)
        self._at_equal_time(first, rates)
        for regime in others:
            self._at_equal_steps(regime, plan.leaders, self._best_rates(regime, plan.leaders), plan.seeds)
        # Another recipe's control learns from other responses than that recipe, so its best rate is another one too.
        of_controls = self._best_rates(first, [control for control in plan.controls if control.recipe != OURS])
        of_controls |= {recipe: rate for recipe, rate in rates.items() if recipe == OURS}
        self._at_equal_steps(first, plan.controls, of_controls, plan.control_seeds)
        return self.done

    def _at_equal_steps(
        self, regime: str, contenders: Sequence[Contender], rates: Mapping[str, float], seeds: int
    ) -> None:
        for seed in range(seeds):
            for contender in contenders:
                if contender.recipe in rates:
                    self._run(regime, contender, "steps", self._plan.steps, seed, rates[contender.recipe])

    def _at_equal_time(self, regime: str, rates: Mapping[str, float]) -> None:
        """Every leader in the compute time of `mgsr` at equal steps, in two readings: the teacher's time of writing
        responses counts, and (where it wrote any) it does not."""
        entries = [
            (contender, steps)
            for paid in (True, False)
            for contender, steps in self._steps_of_equal_time(regime, labels_paid=paid)
        ]
        for seed in range(self._plan.time_seeds):
            for contender, steps in entries:
                self._run(regime, contender, "time", steps, seed, rates[contender.recipe])

    def _steps_of_equal_time(self, regime: str, *, labels_paid: bool) -> Iterator[tuple[Contender, int]]:
        found = [(contender, self._recorded(regime, contender)) for contender in self._plan.leaders]
        ours = next((record for contender, record in found if contender.recipe == OURS), None)
        for contender, record in found:
            written = record.get("labelling_seconds", 0.0) if record else 0.0
            if not ours or not record or (not labels_paid and (not written or contender.recipe == OURS)):
                continue
            # More steps need no more responses than were written already, as soon as every row has been seen; where
            # that is not so, a baseline has a few for nothing.
            left = ours["seconds"] + (ours.get("labelling_seconds", 0.0) - written if labels_paid else 0.0)
            variant = contender.variant if labels_paid else FREE_LABELS
            yield replace(contender, variant=variant), round(self._plan.steps * left / record["seconds"])

    def _best_rates(self, regime: str, contenders: Sequence[Contender]) -> dict[str, float]:
        """By recipe, of which there is one contender each; those that may not be tried any more are left out."""
        found = {contender.recipe: self._best_rate(regime, contender) for contender in contenders}
        return {recipe: rate for recipe, rate in found.items() if rate}

    def _best_rate(self, regime: str, contender: Contender) -> float | None:
        """The learning rate with the best dev measure; of equals the one with the lower KL, then the smaller one."""
        rates = self._plan.learning_rates
        if len(rates) == 1:
            return rates[0]
        found = {}
        for rate in sorted(rates):
            measured = self._run(regime, contender, "sweep", self._plan.sweep_steps, 0, rate)
            if measured:
                found[rate] = (measured[SWEEP_MEASURE], -measured.get("eval/kl_ts", 0.0))
        return max(found, key=found.__getitem__, default=None)

    def _recorded(self, regime: str, contender: Contender) -> Mapping[str, Any] | None:
        """What the contender's first run at equal steps measured."""
        wanted = (regime, contender.recipe, contender.variant, "steps", 0)
        names = ("regime", "recipe", "variant", "budget", "seed")
        return next((r["measured"] for r in self.done if tuple(r[name] for name in names) == wanted), None)

    def _run(
        self, regime: str, contender: Contender, budget: Budget, steps: int, seed: int, rate: float
    ) -> Mapping[str, Any] | None:
        run = Run(self._plan.scale, regime, contender, budget, steps, seed, rate)
        record = self._records.get(run)
        if record is None:
            if not self._may_start():
                self.left_out += 1
                return None
            record = self._records.add(run, self._execute(run))
            shown = next(name for name in (SWEEP_MEASURE, "eval/rouge_l") if name in record["measured"])
            what = f"{regime} {contender.name} {budget} seed {seed} lr {rate:g} steps {steps}"
            self._say(f"{what}: {shown} {record['measured'][shown]:.3f}")
        # A run may serve two budgets or variants: its record is listed under what is asked for.
        self.done.append({**record, "budget": budget, "variant": contender.variant})
        return record["measured"]
