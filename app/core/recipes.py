"""Recipes: named defaults for the sections of a job description that a user leaves out.

Knows plain dictionaries only. Does not know the config classes, which validate what comes out of here.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Literal

RecipeName = Literal["mgsr", "sft", "kd", "seqkd", "imitkd", "gkd", "distillm"]
DEFAULT_RECIPE: RecipeName = "mgsr"

# What a recipe is for, in one line, where it was published, and the sections it fills. Settings that are not written
# here are the published ones, or the defaults where the paper leaves them to the reader. A section without a `kind` of
# its own (`scrg`, `data`) is filled whatever its kind is.
RECIPES: Mapping[str, Mapping[str, Any]] = {
    # [ours] The teacher writes the responses that the data lacks. Of two rows, the one that the student has more to
    # learn from is the likelier to be trained on, and what it knew lately is passed over. A fixed eighth of the batches
    # is the student's, four drawn at a time and used once, and corrected until the teacher agrees with nearly all of
    # each, where Eq. 3 corrects the one token of the largest KL. docs/benchmarks/quality.md has both.
    "mgsr": {
        "summary": "SCRG + DAC-KL + span loss on rows with much to learn, an eighth of the batches the student's own.",
        "paper": "Liu et al., 2026, arXiv 2407.10068",
        "data": {"responses": "given"},
        "sampling": {
            "kind": "mixed",
            "student_fraction": 0.125,
            "batches_per_generation": 4,
            "candidates": 2,
            "skip_known": True,
        },
        "scrg": {"rounds": 12, "position": "first", "teacher_token": "greedy"},
        "losses": [{"kind": "sft"}, {"kind": "dac_kl"}, {"kind": "span"}],
    },
    "sft": {
        "summary": "Plain fine-tuning on the data's responses; the teacher only evaluates.",
        "paper": "Ouyang et al., 2022, arXiv 2203.02155",
        "sampling": {"kind": "ground_truth"},
        "scrg": {"rounds": 0},
        "losses": [{"kind": "sft"}],
    },
    "kd": {
        "summary": "Forward KL to the teacher on the data's responses.",
        "paper": "Hinton et al., 2015, arXiv 1503.02531",
        "sampling": {"kind": "ground_truth"},
        "scrg": {"rounds": 0},
        "losses": [{"kind": "forward_kl"}],
    },
    "seqkd": {
        "summary": "Plain fine-tuning on responses that the teacher writes.",
        "paper": "Kim and Rush, 2016, arXiv 1606.07947",
        "data": {"responses": "teacher"},
        "sampling": {"kind": "ground_truth"},
        "scrg": {"rounds": 0},
        "losses": [{"kind": "sft"}],
    },
    # [ours] A fixed half, where the paper moves from the data's responses to the student's over the run.
    "imitkd": {
        "summary": "Forward KL, half of the batches sampled from the student.",
        "paper": "Lin et al., 2020, arXiv 2009.07253",
        "sampling": {"kind": "mixed", "student_fraction": 0.5},
        "scrg": {"rounds": 0},
        "losses": [{"kind": "forward_kl"}],
    },
    "gkd": {
        "summary": "Generalised JSD, half of the batches sampled from the student.",
        "paper": "Agarwal et al., 2024, arXiv 2306.13649",
        "sampling": {"kind": "mixed", "student_fraction": 0.5},
        "scrg": {"rounds": 0},
        "losses": [{"kind": "jsd", "beta": 0.5}],
    },
    # [ours] Both divergences at once, where each published run takes one of them, and no text of pre-training.
    "distillm": {
        "summary": "Skewed KL + skewed reverse KL on adaptive off-policy samples.",
        "paper": "Ko et al., 2024, arXiv 2402.03898",
        "sampling": {
            "kind": "adaptive_off_policy",
            "phi_start": 0.0,
            "phi_step": 0.1,
            "dev_loss_margin": 0.1,
            "buffer_size": 1000,
        },
        "scrg": {"rounds": 0},
        "losses": [{"kind": "skew_kl", "alpha": 0.1}, {"kind": "skew_reverse_kl", "alpha": 0.1}],
    },
}
_ABOUT = ("summary", "paper")
# What no recipe can make up: a recipe fills fields of such a section, never the section.
_USERS_OWN = ("data",)


def with_recipe(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the job description `raw` with the recipe's sections filled in where they are missing.

    A section that is given keeps every field it gives; the recipe adds the others unless the section is of
    another `kind`. `losses` is a list, so a given one replaces the recipe's. A missing `data` stays missing.
    """
    filled = dict(raw)
    for section, default in _sections(raw.get("recipe")).items():
        given = raw.get(section)
        if given is None and section not in _USERS_OWN:
            filled[section] = default
        elif isinstance(default, Mapping) and isinstance(given, Mapping):
            fits = "kind" not in default or given.get("kind", default["kind"]) == default["kind"]
            filled[section] = {**default, **given} if fits else given
    return filled


def without_recipe(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of `raw` without what any recipe may have filled, to choose another one: `with_recipe` then fills it anew.

    Of `data` only the fields that recipes fill are left out.
    """
    bare = dict(raw)
    for name in RECIPES:
        for section, default in _sections(name).items():
            given = bare.get(section)
            if section not in _USERS_OWN:
                bare.pop(section, None)
            elif isinstance(given, Mapping):
                bare[section] = {field: value for field, value in given.items() if field not in default}
    return bare


def _sections(name: Any) -> dict[str, Any]:
    """What the recipe fills. An unknown recipe is one error, reported where it stands, and not four more about
    sections it left out: here it is the default one."""
    recipe = RECIPES[name if isinstance(name, str) and name in RECIPES else DEFAULT_RECIPE]
    return {section: deepcopy(default) for section, default in recipe.items() if section not in _ABOUT}
