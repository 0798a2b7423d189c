"""Recipes: named defaults for the sections of a job description that a user leaves out.

Knows plain dictionaries only. Does not know the config classes, which validate what comes out of here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

RecipeName = Literal["mgsr", "sft", "kd"]
DEFAULT_RECIPE: RecipeName = "mgsr"

# What a recipe is for, in one line, and the sections it fills.
RECIPES: Mapping[str, Mapping[str, Any]] = {
    "mgsr": {
        "summary": "SCRG + DAC-KL + span loss on adaptive off-policy samples (Liu et al., 2026).",
        "sampling": {"kind": "adaptive_off_policy"},
        "scrg": {"rounds": 1},
        "losses": [{"kind": "sft"}, {"kind": "dac_kl"}, {"kind": "span"}],
    },
    "sft": {
        "summary": "Plain fine-tuning on the data's responses; the teacher only evaluates.",
        "sampling": {"kind": "ground_truth"},
        "scrg": {"rounds": 0},
        "losses": [{"kind": "sft"}],
    },
    "kd": {
        "summary": "Forward KL to the teacher on the data's responses (Hinton et al., 2015).",
        "sampling": {"kind": "ground_truth"},
        "scrg": {"rounds": 0},
        "losses": [{"kind": "forward_kl"}],
    },
}


def with_recipe(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the job description `raw` with the recipe's sections filled in where they are missing.

    A section that is given keeps every field it gives; the recipe adds the others unless the section is of
    another `kind`. `losses` is a list, so a given one replaces the recipe's.
    """
    name = raw.get("recipe")
    # An unknown recipe is one error, reported where it stands, and not four more about sections it left out.
    recipe = RECIPES[name if isinstance(name, str) and name in RECIPES else DEFAULT_RECIPE]
    filled = dict(raw)
    for section, default in recipe.items():
        if section == "summary":
            continue
        given = raw.get(section)
        if given is None:
            filled[section] = default
        elif isinstance(default, Mapping) and isinstance(given, Mapping):
            same_kind = given.get("kind", default.get("kind")) == default.get("kind")
            filled[section] = {**default, **given} if same_kind else given
    return filled
