"""Which runs a plan makes, in what order, and that none is made twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.quality.contenders import Contender
from benchmarks.quality.plan import Bench, Plan
from benchmarks.quality.records import Records, Run

FAST, SLOW = (Contender(name, "default", {"recipe": name}) for name in ("sft", "mgsr"))
OTHER = Contender("mgsr", "no_span", {"recipe": "mgsr", "losses": []})
TAUGHT = Contender("sft", "teacher_responses", {"recipe": "sft", "data": {"responses": "given"}})
LATER = Contender("mgsr", "random_spans", {"recipe": "mgsr", "losses": [1]})
PLAN = Plan(
    scale="tiny",
    regimes=("few_labels", "many_labels"),
    leaders=[FAST, SLOW],
    ablations=[OTHER],
    controls=[LATER, TAUGHT],
    learning_rates=(1e-3, 2e-3),
    steps=100,
    sweep_steps=50,
    seeds=2,
    time_seeds=2,
    control_seeds=1,
)
Key = tuple[str, str, str, str]


class Executed:
    """Remembers what it was asked for; `sft` takes a second and likes the larger rate, `mgsr` takes three. The teacher
    writes a second for `sft` with few labels."""

    def __init__(self) -> None:
        self.runs: list[Run] = []

    def __call__(self, run: Run) -> Mapping[str, Any]:
        self.runs.append(run)
        fast = run.contender.recipe == "sft"
        score = run.learning_rate if fast else -run.learning_rate
        seconds = run.steps / 100
        return {
            "seconds": seconds * (1 if fast else 3),
            "labelling_seconds": seconds if fast and run.regime == "few_labels" else 0.0,
            "eval/exact_match": score,
        }


def make(path: Path, executed: Executed, about: Mapping[str, Any] | None = None) -> list[Mapping[str, Any]]:
    records = Records(path / "records.jsonl", about=about or {})
    return Bench(PLAN, records=records, execute=executed, say=lambda line: None).all_runs()


def seeds_of(done: list[Mapping[str, Any]]) -> Counter[Key]:
    """How many runs there are of each row of the table."""
    rows = [(r["regime"], r["recipe"], r["variant"], r["budget"]) for r in done if r["budget"] != "sweep"]
    return Counter(rows)


def test_every_row_of_the_table_has_its_seeds(tmp_path: Path) -> None:
    assert seeds_of(make(tmp_path, Executed())) == {
        ("few_labels", "sft", "default", "steps"): 2,
        ("few_labels", "mgsr", "default", "steps"): 2,
        ("few_labels", "mgsr", "no_span", "steps"): 2,
        ("few_labels", "mgsr", "random_spans", "steps"): 1,
        ("few_labels", "sft", "teacher_responses", "steps"): 1,
        ("few_labels", "sft", "default", "time"): 2,
        ("few_labels", "sft", "free_labels", "time"): 2,
        ("few_labels", "mgsr", "default", "time"): 2,
        ("many_labels", "sft", "default", "steps"): 2,
        ("many_labels", "mgsr", "default", "steps"): 2,
    }


def test_rates_come_from_the_sweep_and_steps_from_the_time(tmp_path: Path) -> None:
    executed = Executed()
    done = make(tmp_path, executed)
    measured = [run for run in executed.runs if run.budget != "sweep"]
    assert {(run.contender.recipe, run.learning_rate) for run in measured} == {("sft", 2e-3), ("mgsr", 1e-3)}
    steps = {(r["recipe"], r["variant"]): r["steps"] for r in done if r["budget"] == "time"}
    # 3 s of mgsr: a step of sft is 0.01 s, after 1 s of the teacher's where that is paid
    assert steps == {("sft", "default"): 200, ("sft", "free_labels"): 300, ("mgsr", "default"): 100}
    assert all(run.steps == 50 for run in executed.runs if run.budget == "sweep")


def test_another_recipes_control_has_a_rate_of_its_own(tmp_path: Path) -> None:
    executed = Executed()
    make(tmp_path, executed)
    assert sum(run.contender is TAUGHT and run.budget == "sweep" for run in executed.runs) == len(PLAN.learning_rates)


@pytest.mark.parametrize(("divergence", "chosen"), [((0.2, 0.1), 2e-3), ((0.1, 0.2), 1e-3), ((0.1, 0.1), 1e-3)])
def test_of_rates_that_are_as_good_the_lower_divergence_decides(
    tmp_path: Path, divergence: tuple[float, float], chosen: float
) -> None:
    by_rate = dict(zip(PLAN.learning_rates, divergence, strict=True))

    def execute(run: Run) -> Mapping[str, Any]:
        return {"seconds": 1.0, "eval/exact_match": 0.5, "eval/kl_ts": by_rate[run.learning_rate]}

    records = Records(tmp_path / "records.jsonl", about={})
    done = Bench(PLAN, records=records, execute=execute, say=lambda line: None).all_runs()
    assert {record["learning_rate"] for record in done if record["budget"] != "sweep"} == {chosen}


def test_the_runs_of_mgsr_serve_both_budgets(tmp_path: Path) -> None:
    executed = Executed()
    make(tmp_path, executed)
    ours = [run for run in executed.runs if run.contender is SLOW and run.regime == "few_labels"]
    assert [run.budget for run in ours] == ["sweep", "sweep", "steps", "steps"]


def test_a_second_time_goes_on_where_the_first_stopped(tmp_path: Path) -> None:
    first = Executed()
    done = make(tmp_path, first)
    lines = (tmp_path / "records.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "records.jsonl").write_text("".join(lines[:-3]))
    second = Executed()
    assert make(tmp_path, second) == done
    assert len(second.runs) == 3


@pytest.mark.parametrize("allowed", [0, 1, 3, 5, 7, 10, 13, 100])
def test_a_plan_that_may_start_no_more_runs_lists_those_that_are_there(tmp_path: Path, allowed: int) -> None:
    executed = Executed()
    records = Records(tmp_path / "records.jsonl", about={})
    bench = Bench(
        PLAN,
        records=records,
        execute=executed,
        say=lambda line: None,
        may_start=lambda: len(executed.runs) < allowed,
    )
    done = bench.all_runs()
    assert len(executed.runs) <= allowed
    assert bench.left_out > 0 or len(executed.runs) < allowed
    whole = make(tmp_path / "whole", Executed())
    assert [record["key"] for record in done if record["budget"] != "time"] == [
        record["key"] for record in whole if record["budget"] != "time"
    ][: len([record for record in done if record["budget"] != "time"])]


def test_other_conditions_are_other_runs(tmp_path: Path) -> None:
    first, second = Executed(), Executed()
    make(tmp_path, first, {"sizes": 1})
    make(tmp_path, second, {"sizes": 2})
    assert len(second.runs) == len(first.runs)
