"""Recipes fill what is left out and nothing else."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from app.core.job_config import DistillConfig
from app.core.recipes import RECIPES, RecipeName, with_recipe

MINIMAL: dict[str, Any] = {
    "teacher": {"model": "a/teacher"},
    "student": {"kind": "from_teacher", "layers": 10},
    "data": {"kind": "dataset", "dataset_id": "ds_1"},
}


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_makes_a_whole_description_and_says_what_it_is_for(name: str) -> None:
    config = DistillConfig.model_validate({**MINIMAL, "recipe": name})
    assert [loss.kind for loss in config.losses] == [loss["kind"] for loss in RECIPES[name]["losses"]]
    assert RECIPES[name]["summary"].endswith(".")


def test_names_and_table_agree() -> None:
    assert set(get_args(RecipeName)) == set(RECIPES)


def test_given_fields_stay_and_missing_ones_are_filled() -> None:
    filled = with_recipe({"sampling": {"max_new_tokens": 7}})
    assert filled["sampling"] == {"kind": "adaptive_off_policy", "max_new_tokens": 7}
    assert filled["scrg"] == {"rounds": 1}
    assert [loss["kind"] for loss in filled["losses"]] == ["sft", "dac_kl", "span"]


def test_another_kind_takes_nothing_from_the_recipe_and_given_losses_replace_its_losses() -> None:
    filled = with_recipe({"sampling": {"kind": "on_policy"}, "losses": [{"kind": "forward_kl"}]})
    assert filled["sampling"] == {"kind": "on_policy"}
    assert filled["losses"] == [{"kind": "forward_kl"}]


def test_the_input_is_not_changed() -> None:
    raw: dict[str, Any] = {"scrg": {}}
    with_recipe(raw)
    assert raw == {"scrg": {}}
