"""Which runs a plan makes, in what order, and that none is made twice."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.quality.contenders import Contender
from benchmarks.quality.plan import Bench, Plan
from benchmarks.quality.records import Records, Run

FAST, SLOW = (Contender(name, "default", {"recipe": name}) for name in ("sft", "mgsr"))
OTHER = Contender("mgsr", "no_span", {"recipe": "mgsr", "losses": []})
PLAN = Plan(
    scale="tiny",
    regimes=("few_labels", "many_labels"),
    leaders=[FAST, SLOW],
    others=[OTHER],
    others_in=("few_labels",),
    learning_rates=(1e-3, 2e-3),
    steps=100,
    sweep_steps=50,
    seeds=2,
    time_regimes=("few_labels",),
)


class Executed:
    """Remembers what it was asked for; `sft` takes a second and likes the larger rate, `mgsr` takes three."""

    def __init__(self) -> None:
        self.runs: list[Run] = []

    def __call__(self, run: Run) -> Mapping[str, Any]:
        self.runs.append(run)
        fast = run.contender.recipe == "sft"
        score = run.learning_rate if fast else -run.learning_rate
        return {"seconds": run.steps / 100 * (1 if fast else 3), "eval/exact_match": score}


def make(path: Path, executed: Executed, about: Mapping[str, Any] | None = None) -> list[Mapping[str, Any]]:
    records = Records(path / "records.jsonl", about=about or {})
    return Bench(PLAN, records=records, execute=executed, say=lambda line: None).all_runs()


def test_rates_come_from_the_sweep_and_steps_from_the_time(tmp_path: Path) -> None:
    executed = Executed()
    done = make(tmp_path, executed)
    measured = [run for run in executed.runs if run.budget != "sweep"]
    assert {(run.contender.recipe, run.learning_rate) for run in measured} == {("sft", 2e-3), ("mgsr", 1e-3)}
    steps = {(r["recipe"], r["variant"]): r["steps"] for r in done if r["budget"] == "time"}
    assert steps == {("sft", "default"): 300, ("mgsr", "default"): 100}
    regimes = {r["regime"] for r in done if r["variant"] == "no_span"}
    assert regimes == {"few_labels"}
    assert all(run.steps == 50 for run in executed.runs if run.budget == "sweep")


def test_the_slowest_recipes_runs_serve_both_budgets(tmp_path: Path) -> None:
    executed = Executed()
    done = make(tmp_path, executed)
    ours = [run for run in executed.runs if run.contender is SLOW and run.regime == "few_labels"]
    assert [run.budget for run in ours] == ["sweep", "sweep", "steps", "steps"]
    listed = [
        r["budget"] for r in done if (r["recipe"], r["variant"], r["regime"]) == ("mgsr", "default", "few_labels")
    ]
    assert sorted(listed) == ["steps", "steps", "sweep", "sweep", "time", "time"]


def test_a_second_time_goes_on_where_the_first_stopped(tmp_path: Path) -> None:
    first = Executed()
    done = make(tmp_path, first)
    lines = (tmp_path / "records.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "records.jsonl").write_text("".join(lines[:-3]))
    second = Executed()
    assert make(tmp_path, second) == done
    assert len(second.runs) == 3


def test_other_conditions_are_other_runs(tmp_path: Path) -> None:
    first, second = Executed(), Executed()
    make(tmp_path, first, {"sizes": 1})
    make(tmp_path, second, {"sizes": 2})
    assert len(second.runs) == len(first.runs)
