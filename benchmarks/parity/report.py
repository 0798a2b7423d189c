"""The table of the parity benchmark, from its result file.

Knows the result's shape and the tolerances. Needs neither TRL nor torch, so that a test can hold the page to the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path("benchmarks/results/parity.json")
DOCUMENT = Path("docs/benchmarks/parity.md")

# Largest differences allowed. TRL's tail bucket never holds less than 1e-7, which shows in float64.
TOLERANCE: Mapping[str, float] = {"float32": 1e-4, "float64": 1e-11, "float64, topk_kl": 1e-6}

_HEAD = """\
# Parity with TRL

`make bench-parity` runs TRL {trl} and this engine on the same random logits and compares the mean loss over the
unmasked positions and its gradient. Problems (rows x positions x vocabulary): {shapes}; standard deviation of the
logits {sharpness}; {seeds} seeds each; about a third of the positions masked. The gradient is that of the student's
logits; rows marked *sliced* start from hidden states and heads, go through both engines' chunked paths, and compare the
gradient of the student's hidden states (float32 only, since TRL computes that in float32). TRL is installed in
`.venv-bench`; the product does not depend on it. Figures: `benchmarks/results/parity.json`. torch {torch}, {cpu}.

The table has the largest difference over all problems: of the value, relative (to 0.01 nats where it is smaller); of
the gradient, relative to its largest entry (to 1 per position where that is smaller). Allowed are {float32:g} in
float32 and {float64:g} in float64; {topk:g} for `topk_kl` in float64, because TRL's tail never holds less than 1e-7.
**{verdict}**

| loss | setting | TRL | precision | problems | value | gradient | holds |
|---|---|---|---|---|---|---|---|
"""

_TAIL = """
Where definitions differ:

- `beta` has one direction in both: the teacher's share of the mixture, and the weight of the teacher's term. At its
  ends they part: TRL switches to forward KL at 0 and to reverse KL at 1, where the formula itself gives 0. Here `beta`
  lies strictly between them, and the ends are losses of their own, `forward_kl` and `reverse_kl`.
- TRL's `reduction="batchmean"` with labels is a mean over tokens; without labels it divides by the number of rows, and
  its value grows with the length. Here a term is always divided by what it counts in the whole accumulation window.
- TRL divides logits by a temperature in the loss; here losses are taken at temperature 1.
- TRL's GKD loss is computed in the logits' own type. Here half-precision logits are widened to float32 first.
- TRL has no skewed divergence: compared is its KL to a mixture made of plain probabilities. Here mixtures stay in log
  space.
- TRL's self-distillation takes the *student's* k likeliest tokens; `topk_kl` takes the teacher's, and so does this
  comparison, with TRL's tail bucket and divergence. TRL's tail is one minus the mass of the k, here it is summed over
  the tail: the former loses digits when the tail is small, the latter when it is nearly everything.
- `tvd`, `topp_kl`, `dac_kl` and `span` have no counterpart in TRL.
"""


@dataclass(frozen=True)
class Row:
    """One loss against TRL's in one precision: the largest differences over `cases` problems."""

    loss: str
    setting: str
    trl: str
    precision: str
    cases: int
    value_difference: float
    gradient_difference: float

    @property
    def holds(self) -> bool:
        limit = TOLERANCE.get(f"{self.precision}, {self.loss}", TOLERANCE[self.precision])
        return self.value_difference <= limit and self.gradient_difference <= limit


def document(result: Mapping[str, Any]) -> str:
    """The page, from what is in the result file."""
    rows = [Row(**row) for row in result["rows"]]
    machine, problems, tolerance = result["machine"], result["problems"], result["tolerance"]
    failed = sum(not row.holds for row in rows)
    head = _HEAD.format(
        trl=machine["trl"],
        torch=machine["torch"],
        cpu=machine["cpu"],
        shapes=", ".join(" x ".join(map(str, shape)) for shape in problems["shapes"]),
        sharpness=", ".join(f"{x:g}" for x in problems["sharpness"]),
        seeds=problems["seeds"],
        float32=tolerance["float32"],
        float64=tolerance["float64"],
        topk=tolerance["float64, topk_kl"],
        verdict="All agree." if not failed else f"{failed} of {len(rows)} comparisons do not agree.",
    )
    lines = [
        f"| `{row.loss}` | {row.setting} | {row.trl} | {row.precision} | {row.cases} | {row.value_difference:.1e} | "
        f"{row.gradient_difference:.1e} | {'yes' if row.holds else 'NO'} |"
        for row in rows
    ]
    return head + "\n".join(lines) + "\n" + _TAIL


def write(result: Mapping[str, Any]) -> None:
    """Both files, from the working directory: the repository's root."""
    for path in (RESULTS, DOCUMENT):
        path.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    DOCUMENT.write_text(document(json.loads(json.dumps(result))), encoding="utf-8")
