"""Who competes: every recipe, `mgsr` without each of its parts, and the controls that say what a part is worth.

Knows sections of a job's description. Does not know rows, seeds or learning rates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.core.recipes import RECIPES

BASELINES = ("sft", "seqkd", "kd", "imitkd", "gkd", "distillm")
OURS = "mgsr"
# The replay buffer as the published runs relate it to theirs: some twenty batches. With 1,000 sequences it would not
# fill within the steps of these runs, and nothing would ever be replayed.
BUFFER_BATCHES = 20
# How the recipe chooses rows, whoever writes the responses.
_CHOICE = {name: RECIPES[OURS]["sampling"][name] for name in ("candidates", "skip_known")}


@dataclass(frozen=True)
class Contender:
    """A recipe, `variant` (`default`, an ablation or a control), and the sections that it fills."""

    recipe: str
    variant: str
    sections: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.recipe if self.variant == "default" else f"{self.recipe} {self.variant}"


def baselines() -> list[Contender]:
    return [Contender(recipe, "default", {"recipe": recipe}) for recipe in BASELINES]


def ours() -> Contender:
    return Contender(OURS, "default", {"recipe": OURS})


def ablations() -> list[Contender]:
    """`mgsr` minus a part. Without DAC-KL the same divergence stands unclipped in its place, so that sampled rows still
    teach something: what is left out is the clipping. `no_samples` leaves out the student's batches altogether,
    `no_choice` takes rows as they come."""
    return [
        _scrg("no_scrg", rounds=0),
        _with_losses("no_dac_kl", dac_kl=_unclipped()),
        _with_losses("no_span", span=None),
        Contender(
            OURS,
            "no_samples",
            {"recipe": OURS, "sampling": {"kind": "ground_truth", **_CHOICE}, "scrg": {"rounds": 0}},
        ),
        _sampling("no_choice", candidates=1),
    ]


def controls() -> list[Contender]:
    """What the choices inside a part are worth, and the paper's literal form."""
    literal = {"rounds": 1, "position": "largest_kl", "teacher_token": "sample"}
    literal_mask = {"normalise": "none", "subnet_objective": "minimise", "quantiles": "all"}
    adaptive = {"kind": "adaptive_off_policy", "phi_start": 0.5, **_CHOICE}
    return [
        Contender(
            OURS,
            "paper_literal",
            {
                "recipe": OURS,
                "sampling": {**adaptive, "candidates": 1, "skip_known": False},
                "scrg": literal,
                "losses": _losses(dac_kl={**_loss("dac_kl"), **literal_mask}),
            },
        ),
        _scrg("random_position", position="random"),
        _scrg("sampled_teacher_token", teacher_token="sample"),
        _with_losses("top_k_mask", dac_kl={"kind": "topk_kl"}),
        _with_losses("top_p_mask", dac_kl={"kind": "topp_kl"}),
        _dac("normalise_none", normalise="none"),
        _dac("normalise_renorm", normalise="renorm"),
        Contender(
            OURS, "random_spans", {"recipe": OURS, "losses": _losses(span={**_loss("span"), "chunker": "random"})}
        ),
        Contender(OURS, "student_responses", {"recipe": OURS, "data": {"responses": "student"}}),
        _sampling("quarter_sampled", student_fraction=0.25),
        _sampling("half_sampled", student_fraction=0.5),
        _sampling("no_memory", skip_known=False),
        _sampling("one_batch_per_generation", batches_per_generation=1),
        _sampling("four_candidates", candidates=4),
        Contender(
            "seqkd",
            "chosen_rows",
            {"recipe": "seqkd", "sampling": {"kind": "ground_truth", **_CHOICE}},
        ),
        *(teacher_written(recipe) for recipe in ("kd", "imitkd", "gkd", "distillm")),
        _dac("quantiles_all", quantiles="all", density_gain="absolute", start_lower=0.05, start_upper=0.95),
        _dac("subnet_minimise", subnet_objective="minimise"),
        _scrg("literal_scrg", **literal),
        _scrg("three_rounds", rounds=3),
        _scrg("largest_kl_position", position="largest_kl"),
        Contender(OURS, "adaptive_off_policy", {"recipe": OURS, "sampling": adaptive}),
        _with_losses("sft_on_samples", sft={"kind": "sft", "rows": "all"}),
    ]


def teacher_written(recipe: str) -> Contender:
    """The recipe where the teacher writes what the data lacks, before training, as it does for `seqkd` and `mgsr`."""
    return Contender(recipe, "teacher_responses", {"recipe": recipe, "data": {"responses": "given"}})


def responses_of(contender: Contender) -> str:
    """Who writes for prompts without a response: as the contender or its recipe says, else the student."""
    for sections in (contender.sections, RECIPES[contender.recipe]):
        if "responses" in sections.get("data", {}):
            return str(sections["data"]["responses"])
    return "student"


def _sampling(variant: str, **changes: Any) -> Contender:
    return Contender(OURS, variant, {"recipe": OURS, "sampling": {**RECIPES[OURS]["sampling"], **changes}})


def _scrg(variant: str, **changes: Any) -> Contender:
    return Contender(OURS, variant, {"recipe": OURS, "scrg": changes})


def _dac(variant: str, **changes: Any) -> Contender:
    return _with_losses(variant, dac_kl={**_loss("dac_kl"), **changes})


def _with_losses(variant: str, **replaced: Mapping[str, Any] | None) -> Contender:
    return Contender(OURS, variant, {"recipe": OURS, "losses": _losses(**replaced)})


def _loss(kind: str) -> dict[str, Any]:
    return next(dict(loss) for loss in RECIPES[OURS]["losses"] if loss["kind"] == kind)


def _losses(**replaced: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
    """The recipe's losses with some replaced, each keeping its weight, or left out (None)."""
    found = []
    for loss in RECIPES[OURS]["losses"]:
        instead = replaced.get(loss["kind"], loss)
        if instead is not None:
            found.append({"weight": loss.get("weight", 1.0), **instead} if "weight" in loss else dict(instead))
    return found


def _unclipped() -> Mapping[str, Any]:
    """The divergence that `dac_kl` clips, whole."""
    kinds = {
        "forward": {"kind": "forward_kl"},
        "reverse": {"kind": "reverse_kl"},
        "skew": {"kind": "skew_kl"},
        "skew_reverse": {"kind": "skew_reverse_kl"},
    }
    dac = _loss("dac_kl")
    alpha = {"alpha": dac["alpha"]} if "alpha" in dac else {}
    divergence = dac.get("divergence", "forward")
    return kinds[divergence] | (alpha if divergence.startswith("skew") else {})
