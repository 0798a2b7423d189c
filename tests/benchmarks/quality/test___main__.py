"""The whole benchmark at toy size: real models, real training, the shape of quality.json, and the page from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.quality import contenders
from benchmarks.quality.__main__ import write_results
from benchmarks.quality.closed import ClosedWorld, Sizes
from benchmarks.quality.models import Scratch, Shape, trained
from benchmarks.quality.plan import Bench, Plan
from benchmarks.quality.records import Records, Run
from benchmarks.quality.report import write_report
from worker.distill.data import ground_truth
from worker.distill.evaluate import response_states

TOY = Scratch(Shape(32, 32, 1), "start", tasks=100, steps=2, batch_size=4, learning_rate=1e-3)
SIZES = Sizes(
    batch_size=4, labelled=8, prompts=16, dev_rows=4, dev_every=2, sweep_rows=10, test_rows=10, sampled_rows=4
)
SPREADS = (
    "rouge_l",
    "exact_match",
    "kl_ts",
    "kl_st",
    "kl_ts_samples",
    "kl_st_samples",
    "exact_match_t0.3",
    "exact_match_t0.7",
    "exact_match_t1",
    "seconds",
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> ClosedWorld:
    return ClosedWorld(teacher=TOY, student=TOY, cache=tmp_path_factory.mktemp("cache"), sizes=SIZES)


@pytest.fixture(scope="module")
def quality(world: ClosedWorld, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("results")
    chosen = [c for c in contenders.baselines() if c.recipe in ("seqkd", "gkd")]
    plan = Plan(
        scale="tiny",
        regimes=("few_labels", "many_labels"),
        leaders=[*chosen, contenders.ours()],
        ablations=contenders.ablations()[:1],
        controls=[],
        learning_rates=(1e-3,),
        steps=3,
        sweep_steps=2,
        seeds=2,
        time_seeds=2,
        control_seeds=0,
    )
    records = Records(folder / "records.jsonl", about={})
    done = Bench(plan, records=records, execute=world.execute, say=lambda line: None).all_runs()
    write_results(folder / "quality.json", done, scale="tiny", about={"sizes": "toy"})
    return json.loads((folder / "quality.json").read_text())


def test_quality_json_has_its_shape(quality: dict[str, Any]) -> None:
    assert {"cpu", "device", "torch", "date"} <= quality["machine"].keys()
    rows = {(r["regime"], r["recipe"], r["variant"], r["budget"]) for r in quality["rows"]}
    recipes = ("seqkd", "gkd", "mgsr")
    assert rows == {
        *(("few_labels", recipe, "default", budget) for recipe in recipes for budget in ("steps", "time")),
        *(("many_labels", recipe, "default", "steps") for recipe in recipes),
        ("few_labels", "mgsr", "no_scrg", "steps"),
        ("few_labels", "seqkd", "free_labels", "time"),
    }
    for row in quality["rows"]:
        assert (row["scale"], row["seeds"]) == ("tiny", 2)
        assert all(row[name].keys() == {"mean", "std"} for name in SPREADS)
        if (row["recipe"], row["variant"]) != ("mgsr", "default"):
            assert row["minus_mgsr"]["exact_match"].keys() == {"mean", "low", "high"}


def test_masks_are_followed_over_training(quality: dict[str, Any]) -> None:
    (curve,) = (c for c in quality["curves"] if (c["regime"], c["variant"]) == ("few_labels", "default"))
    assert len(curve["upper"]) == 3
    assert all(0 <= lower <= upper <= 1 for lower, upper in zip(curve["lower"], curve["upper"], strict=True))


def test_the_other_scales_rows_stay(quality: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "quality.json"
    kept = {**quality["rows"][0], "scale": "smol"}
    path.write_text(json.dumps({**quality, "rows": [kept, quality["rows"][1]]}))
    write_results(path, [], scale="tiny", about={})
    assert json.loads(path.read_text())["rows"] == [kept]


def test_the_page_and_the_plot_come_from_the_file(quality: dict[str, Any], tmp_path: Path) -> None:
    results, page, plot = tmp_path / "quality.json", tmp_path / "docs/quality.md", tmp_path / "docs/quality.svg"
    row = next(r for r in quality["rows"] if r["recipe"] == "gkd" and r["budget"] == "steps")
    row["exact_match"] = {"mean": 0.4321, "std": 0.0123}
    results.write_text(json.dumps(quality))
    (tmp_path / "notes.md").write_text("What a person says.")
    write_report(results, page=page, plot=plot, notes=tmp_path / "notes.md")
    text = page.read_text()
    assert "| gkd | 2 | 3 |" in text
    assert "43.2 ± 1.2" in text
    assert "mgsr `no_scrg`" in text
    assert "What a person says." in text
    drawn = plot.read_bytes()
    write_report(results, page=page, plot=plot)
    assert plot.read_bytes() == drawn


def test_the_teachers_time_of_writing_counts_where_it_writes(quality: dict[str, Any]) -> None:
    seconds = {
        (r["regime"], r["recipe"]): r["labelling_seconds"]["mean"] for r in quality["rows"] if r["budget"] == "steps"
    }
    assert seconds["few_labels", "seqkd"] > 0
    assert seconds["many_labels", "seqkd"] == seconds["few_labels", "seqkd"]  # it writes them all anew
    assert seconds["few_labels", "gkd"] == seconds["many_labels", "mgsr"] == 0


@pytest.mark.parametrize(
    ("regime", "recipe", "steps", "kept"),
    [
        ("few_labels", "kd", 2, True),  # 8 rows are visited as often as there are labelled ones
        ("few_labels", "kd", 1, False),
        ("few_labels", "mgsr", 4, True),
        ("few_labels", "seqkd", 4, False),  # no loss reads them
        ("many_labels", "kd", 5, False),
        ("many_labels", "kd", 6, True),
    ],
)
def test_rows_have_the_teachers_states_where_a_job_keeps_them(
    regime: str, recipe: str, steps: int, kept: bool, world: ClosedWorld
) -> None:
    contender = next(c for c in (*contenders.baselines(), contenders.ours()) if c.recipe == recipe)
    run = Run("tiny", regime, contender, "steps", steps, 0, 1e-3)
    assembly = world.assembly(world.config(run), regime)
    answered = [row for row in assembly.train_rows if row.response_ids is not None]
    assert [row.teacher_TD is not None for row in answered] == [kept] * len(answered)
    for row in answered[:3] + answered[-3:]:
        if row.teacher_TD is not None:
            batch = assembly.batch(ground_truth([row]))
            torch.testing.assert_close(row.teacher_TD, response_states(world.teacher, batch), rtol=0.05, atol=0.05)
    assert (world._reading_seconds(assembly.config, regime) > 0) == kept


def test_few_labels_leave_prompts_without_responses(world: ClosedWorld) -> None:
    few, many = (world.train_rows(regime, "student") for regime in ("few_labels", "many_labels"))
    assert [row.prompt_ids for row in few] == [row.prompt_ids for row in many]
    assert [row.response_ids is not None for row in few] == [True] * 8 + [False] * 16
    assert all(row.response_ids for row in (*many, *world.train_rows("few_labels", "teacher")))
    assert few[:8] == list(world.train_rows("few_labels", "given"))[:8]


def test_a_model_is_trained_once_per_content(tmp_path: Path) -> None:
    folder = trained(TOY, cache=tmp_path)
    weights = (folder / "model.safetensors").stat().st_mtime_ns
    assert trained(TOY, cache=tmp_path) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == weights
    assert trained(Scratch(**{**vars(TOY), "steps": 1}), cache=tmp_path) != folder
