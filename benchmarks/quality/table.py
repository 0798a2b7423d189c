"""From records of runs to the rows of quality.json: means, standard deviations, and paired differences.

Knows numbers by name. Does not know how they were measured or how they are shown.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import bootstrap

# name in the table: name of the measure in a record
MEASURES = {
    "exact_match": "eval/exact_match",
    "rouge_l": "eval/rouge_l",
    "kl_ts": "eval/kl_ts",
    "kl_st": "eval/kl_st",
    "top1_agreement": "eval/top1_agreement",
    "kl_ts_samples": "eval/kl_ts_samples",
    "kl_st_samples": "eval/kl_st_samples",
    "ex_acc_err": "eval/ex_acc_err",
    "exact_match_t0.3": "eval/t0.3/exact_match",
    "exact_match_t0.7": "eval/t0.7/exact_match",
    "exact_match_t1": "eval/t1/exact_match",
    "distinct_1": "eval/distinct_1",
    "distinct_2": "eval/distinct_2",
    "response_tokens": "eval/answer_tokens",
    "ended": "eval/ended",
    "seconds": "seconds",
    "labelling_seconds": "labelling_seconds",
}
# Differences to `mgsr` are taken of these, seed by seed.
COMPARED = ("exact_match", "rouge_l", "kl_ts_samples")
CURVES = ("dac_kl/lower", "dac_kl/upper", "dac_kl/kept_mass", "dac_kl/kept_mass_beside_target", "dac_kl/floor_held")
_RESAMPLES = 2000


def rows_of(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row per scale, regime, contender and budget. A measure that only some of its runs have says of how many
    `seeds` it is. `minus_mgsr` is the contender's mean difference to `mgsr` over the seeds that both have, with a
    bootstrap interval of 95 %."""
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for record in records:
        if record["budget"] != "sweep":
            key = tuple(record[name] for name in ("scale", "regime", "recipe", "variant", "budget"))
            groups.setdefault(key, []).append(record)
    rows = []
    for (scale, regime, recipe, variant, budget), group in groups.items():
        base = groups.get((scale, regime, "mgsr", "default", budget), [])
        row: dict[str, Any] = {
            "scale": scale,
            "regime": regime,
            "recipe": recipe,
            "variant": variant,
            "budget": budget,
            "seeds": len(group),
            "steps": group[0]["steps"],
            "learning_rate": group[0]["learning_rate"],
        }
        for name, measure in MEASURES.items():
            values = [record["measured"][measure] for record in group if measure in record["measured"]]
            if values:
                fewer = {"seeds": len(values)} if len(values) < len(group) else {}
                row[name] = spread(values) | fewer
        if base and base is not group:
            row["minus_mgsr"] = {name: paired(group, base, MEASURES[name]) for name in COMPARED}
        rows.append(row)
    return rows


def spread(values: Sequence[float]) -> dict[str, float]:
    """Mean and sample standard deviation (0 for a single value)."""
    return {"mean": statistics.fmean(values), "std": statistics.stdev(values) if len(values) > 1 else 0.0}


def paired(group: Sequence[Mapping[str, Any]], base: Sequence[Mapping[str, Any]], measure: str) -> dict[str, float]:
    """Mean of `group` minus `base`, seed by seed, with the percentile bootstrap's 95 % interval (none for one seed)."""
    of_base = {record["seed"]: record["measured"] for record in base}
    differences = np.array(
        [
            record["measured"][measure] - of_base[record["seed"]][measure]
            for record in group
            if measure in record["measured"] and measure in of_base.get(record["seed"], {})
        ]
    )
    if not len(differences):
        return {}
    found = {"mean": float(differences.mean())}
    if len(differences) > 1:
        interval = bootstrap(
            (differences,), np.mean, n_resamples=_RESAMPLES, method="percentile", rng=np.random.default_rng(0)
        ).confidence_interval
        found |= {"low": float(interval.low), "high": float(interval.high)}
    return found


def curves_of(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The mask of DAC-KL over training, per variant of `mgsr` at equal steps: the mean over seeds of every point."""
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for record in records:
        if record["budget"] == "steps" and CURVES[0] in record["measured"].get("curve", {}):
            groups.setdefault((record["scale"], record["regime"], record["variant"]), []).append(record)
    return [
        {
            "scale": scale,
            "regime": regime,
            "variant": variant,
            **{
                name.removeprefix("dac_kl/"): [
                    round(statistics.fmean(points), 4)
                    for points in zip(*(record["measured"]["curve"][name] for record in group), strict=False)
                ]
                for name in CURVES
            },
        }
        for (scale, regime, variant), group in groups.items()
    ]
