"""docs/benchmarks/quality.md and its plot, from quality.json and from nothing else.

Knows the shape of quality.json. Does not run anything. `python -m benchmarks.quality.report` writes both anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt

RESULTS = Path("benchmarks/results/quality.json")
PAGE = Path("docs/benchmarks/quality.md")
PLOT = Path("docs/benchmarks/quality.svg")
NOTES = Path("benchmarks/quality/notes.md")
_TITLES = {"few_labels": "Few labels", "many_labels": "Many labels"}
_BUDGETS = {"steps": "equal steps", "time": "equal compute time"}
# heading, name in the row, factor
_COLUMNS = (
    ("exact match %", "exact_match", 100.0),
    ("ROUGE-L %", "rouge_l", 100.0),
    ("KL(T‖S)", "kl_ts", 1.0),
    ("KL(T‖S) own samples", "kl_ts_samples", 1.0),
    ("KL(S‖T) own samples", "kl_st_samples", 1.0),
    ("EM T 0.3 %", "exact_match_t0.3", 100.0),
    ("EM T 0.7 %", "exact_match_t0.7", 100.0),
    ("EM T 1 %", "exact_match_t1", 100.0),
    ("training, s", "seconds", 1.0),
    ("teacher writes, s", "labelling_seconds", 1.0),
)


def write_report(results: Path, *, page: Path, plot: Path, notes: Path | None = None) -> None:
    """Reads `results` and writes the page and the plot. `notes` (what a person says of the figures) goes on top."""
    quality = json.loads(results.read_text(encoding="utf-8"))
    page.parent.mkdir(parents=True, exist_ok=True)
    draw(quality, plot)
    said = notes.read_text(encoding="utf-8") if notes and notes.exists() else ""
    page.write_text("\n".join(_lines(quality, said=said, plot=plot.name)) + "\n", encoding="utf-8")


def _lines(quality: Mapping[str, Any], *, said: str, plot: str) -> Iterator[str]:
    machine = quality["machine"]
    yield "# Quality of the recipes"
    yield ""
    yield "Written by `make bench-quality` from `benchmarks/results/quality.json`; do not edit by hand."
    yield f"Machine: {machine['cpu']}, device {machine['device']}, {machine['threads']} thread(s), {machine['date']}."
    yield ""
    if said:
        yield said.strip()
        yield ""
    yield f"![Exact match per recipe, and the mask of DAC-KL over training]({plot})"
    for scale, regime, budget in _groups(quality["rows"]):
        rows = [r for r in quality["rows"] if (r["scale"], r["regime"], r["budget"]) == (scale, regime, budget)]
        yield ""
        yield f"## {_TITLES.get(regime, regime)}, {_BUDGETS[budget]} (scale `{scale}`)"
        yield ""
        yield from _table(rows)


def _groups(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    return list(dict.fromkeys((row["scale"], row["regime"], row["budget"]) for row in rows))


def _table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    columns = [column for column in _COLUMNS if any(column[1] in row for row in rows)]
    heads = ["contender", "seeds", "steps", "learning rate", *(head for head, _, _ in columns), "exact match − mgsr"]
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    for row in sorted(rows, key=_rank):
        name = row["recipe"] if row["variant"] == "default" else f"{row['recipe']} `{row['variant']}`"
        cells = [name, str(row["seeds"]), str(row["steps"]), f"{row['learning_rate']:g}"]
        cells += [_cell(row.get(field), factor, seeds=row["seeds"]) for _, field, factor in columns]
        yield "| " + " | ".join([*cells, _difference(row.get("minus_mgsr", {}).get("exact_match"))]) + " |"


def _rank(row: Mapping[str, Any]) -> tuple[bool, float]:
    """Recipes first, then ablations and controls, the best of each on top."""
    return row["variant"] != "default", -row.get("exact_match", row["rouge_l"])["mean"]


def _cell(value: Mapping[str, float] | None, factor: float, *, seeds: int) -> str:
    if value is None:
        return ""
    if not value["mean"] and not value["std"]:
        return "0"
    digits = 1 if factor == 100 or value["mean"] >= 10 else 3
    own = value.get("seeds", seeds)  # of this measure, where not all of the row's runs have it
    spread = f" ± {value['std'] * factor:.{digits}f}" if own > 1 else ""
    return f"{value['mean'] * factor:.{digits}f}{spread}" + (f" ({own:g})" if own < seeds else "")


def _difference(value: Mapping[str, float] | None) -> str:
    if not value:
        return ""
    interval = f" ({value['low'] * 100:+.1f} to {value['high'] * 100:+.1f})" if "low" in value else ""
    return f"{value['mean'] * 100:+.1f}{interval}"


# --- the plot -----------------------------------------------------------------------------------------------


def draw(quality: Mapping[str, Any], path: Path) -> None:
    """Left: exact match (or ROUGE-L) per contender at equal steps. Right: bounds and kept mass over training."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 6), layout="constrained")
    _draw_quality(left, quality["rows"])
    _draw_masks(right, quality.get("curves", []))
    with plt.rc_context({"svg.hashsalt": "quality"}):
        figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _draw_quality(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    shown = [row for row in rows if row["budget"] == "steps"]
    regimes = list(dict.fromkeys(row["regime"] for row in shown))
    names = list(dict.fromkeys((row["recipe"], row["variant"]) for row in sorted(shown, key=_rank, reverse=True)))
    for i, regime in enumerate(regimes):
        of_regime = [row for row in shown if row["regime"] == regime]
        places = [names.index((row["recipe"], row["variant"])) + 0.25 * i for row in of_regime]
        values = [row.get("exact_match", row["rouge_l"]) for row in of_regime]
        axes.errorbar(
            [100 * value["mean"] for value in values],
            places,
            xerr=[100 * value["std"] for value in values],
            fmt="o",
            label=_TITLES.get(regime, regime),
        )
    axes.set_yticks(range(len(names)), [r if v == "default" else f"{r} {v}" for r, v in names])
    axes.set_xlabel("greedy exact match, % (mean ± standard deviation)")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(loc="lower left")


def _draw_masks(axes: Any, curves: Sequence[Mapping[str, Any]]) -> None:
    for curve, style in zip(_most_telling(curves), ("-", "--", ":"), strict=False):
        for name, colour in (("lower", "C0"), ("upper", "C1"), ("kept_mass_beside_target", "C2"), ("floor_held", "C3")):
            axes.plot(curve[name], style, color=colour, label=f"{curve['variant']}: {name.replace('_', ' ')}")
    axes.set_xlabel("training (equal steps), from its first to its last step")
    axes.set_ylim(-0.02, 1.02)
    axes.grid(alpha=0.3)
    if curves:
        axes.legend(fontsize="x-small")


def _most_telling(curves: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The default's mask, and beside it that of quantiles of all mass, and the literal sub-network's."""
    wanted = ("default", "quantiles_all", "subnet_minimise")
    first = [next((c for c in curves if c["variant"] == variant), None) for variant in wanted]
    return [curve for curve in first if curve]


if __name__ == "__main__":
    write_report(RESULTS, page=PAGE, plot=PLOT, notes=NOTES)
