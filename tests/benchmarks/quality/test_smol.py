"""The scale of published models, with a tiny one: files by path, the responses of each regime, and a measured run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.quality.contenders import Contender, ours
from benchmarks.quality.records import Run
from benchmarks.quality.smol import SmolBench, SmolSizes
from worker.distill.assembly import assemble

WORDS = ["the", "small", "brown", "dog", "quickly", "sees", "green", "birds", "near", "old", "houses"]


@pytest.fixture
def bench(tiny_teacher: Path, tmp_path: Path) -> SmolBench:
    rows = [{"prompt": f"say {word} and {i}", "response": f"{word} it is"} for i, word in enumerate(WORDS)]
    too_long = {"prompt": "dog " * 300, "response": "no"}
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in [too_long, *rows]))
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "say cat"}\n')
    sizes = SmolSizes(
        teacher=str(tiny_teacher),
        data=data,
        evaluate=(data, prompts),
        rows=3,
        layers=1,
        labelled=4,
        dev_rows=3,
        warmup_steps=1,
        batch_size=4,
        max_prompt_tokens=120,
        max_response_tokens=16,
    )
    return SmolBench(sizes, folder=tmp_path / "files")


def run(contender: Contender, regime: str = "few_labels") -> Run:
    return Run("smol", regime, contender, "steps", steps=2, seed=0, learning_rate=1e-3)


def test_a_run_is_trained_and_measured(bench: SmolBench) -> None:
    measured = bench.execute(run(ours()))
    assert {"seconds", "eval/rouge_l", "eval/kl_ts", "eval/kl_ts_samples", "eval/t0.7/rouge_l"} <= measured.keys()
    assert "eval/exact_match" not in measured


@pytest.mark.parametrize(
    ("recipe", "regime", "unanswered"),
    [("gkd", "few_labels", 4), ("gkd", "many_labels", 0), ("seqkd", "few_labels", 0)],
)
def test_responses_are_the_regimes_and_the_recipes(bench: SmolBench, recipe: str, regime: str, unanswered: int) -> None:
    config = bench.config(run(Contender(recipe, "default", {"recipe": recipe}), regime))
    assembly = assemble(config, emit=lambda event: None, should_stop=lambda: None)
    assert len(assembly.train_rows) == 8  # eleven that fit, three of them held out
    assert sum(row.response_ids is None for row in assembly.train_rows) == unanswered
