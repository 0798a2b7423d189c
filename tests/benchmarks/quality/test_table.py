"""Means, paired differences and curves from records written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.quality.table import curves_of, rows_of

MASK = ("lower", "upper", "kept_mass", "kept_mass_beside_target", "floor_held")


def record(
    recipe: str, seed: int, exact_match: float, *, variant: str = "default", budget: str = "steps", **more: Any
) -> dict[str, Any]:
    measured = {"eval/exact_match": exact_match, "eval/rouge_l": 0.5, "eval/kl_ts_samples": 1.0, "seconds": 2.0, **more}
    return {
        "scale": "tiny",
        "regime": "few_labels",
        "recipe": recipe,
        "variant": variant,
        "budget": budget,
        "steps": 10,
        "seed": seed,
        "learning_rate": 1e-3,
        "measured": measured,
    }


def test_a_row_has_means_and_standard_deviations_over_seeds() -> None:
    (row,) = rows_of([record("mgsr", 0, 0.2), record("mgsr", 1, 0.4), record("mgsr", 0, 0.9, budget="sweep")])
    assert row["seeds"] == 2
    assert row["exact_match"]["mean"] == pytest.approx(0.3)
    assert row["exact_match"]["std"] == pytest.approx(0.2 / 2**0.5)
    assert row["rouge_l"] == {"mean": 0.5, "std": 0.0}
    assert "kl_st" not in row  # was not measured
    assert "minus_mgsr" not in row


def test_a_measure_that_some_runs_lack_says_of_how_many_seeds_it_is() -> None:
    (row,) = rows_of([record("mgsr", seed, 0.2, **({"eval/kl_ts": 1.0 + seed} if seed else {})) for seed in range(3)])
    assert row["seeds"] == 3
    assert row["kl_ts"] == {"mean": 2.5, "std": pytest.approx(0.5**0.5), "seeds": 2}
    assert "seeds" not in row["rouge_l"]


def test_differences_are_taken_seed_by_seed() -> None:
    ours = [record("mgsr", seed, 0.5 + 0.1 * seed) for seed in range(4)]
    theirs = [record("sft", seed, 0.4 + 0.1 * seed) for seed in range(3)]
    rows = {row["recipe"]: row for row in rows_of([*ours, *theirs])}
    assert rows["sft"]["minus_mgsr"]["exact_match"] == pytest.approx({"mean": -0.1, "low": -0.1, "high": -0.1})


def test_the_interval_holds_the_mean_and_is_the_same_every_time() -> None:
    ours = [record("mgsr", seed, 0.5) for seed in range(5)]
    theirs = [record("kd", seed, value) for seed, value in enumerate((0.3, 0.45, 0.55, 0.4, 0.35))]
    found = [
        next(row for row in rows_of([*ours, *theirs]) if row["recipe"] == "kd")["minus_mgsr"]["exact_match"]
        for _ in range(2)
    ]
    assert found[0] == found[1]
    assert found[0]["mean"] == pytest.approx(-0.09)
    assert found[0]["low"] < found[0]["mean"] < found[0]["high"]


def test_curves_are_means_over_seeds() -> None:
    curves = [{f"dac_kl/{name}": [0.0, value] for name in MASK} for value in (0.2, 0.4)]
    records = [record("mgsr", seed, 0.5, curve=curve) for seed, curve in enumerate(curves)]
    (curve,) = curves_of([*records, record("sft", 0, 0.1, curve={})])
    assert [curve.pop(name) for name in MASK] == [[0.0, 0.3]] * len(MASK)
    assert curve == {"scale": "tiny", "regime": "few_labels", "variant": "default"}
