"""Recipes fill what is left out and nothing else."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from pydantic import ValidationError

from app.core.job_config import DistillConfig
from app.core.recipes import RECIPES, RecipeName, with_recipe, without_recipe

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
    assert "arXiv" in RECIPES[name]["paper"]


@pytest.mark.parametrize("name", RECIPES)
def test_whoever_changes_a_description_changes_no_recipe(name: RecipeName) -> None:
    before = repr(RECIPES[name])
    filled = with_recipe({**MINIMAL, "recipe": name})
    filled["scrg"]["rounds"] = 7
    filled["sampling"]["kind"] = "none"
    filled["losses"][0]["weight"] = 3.0
    assert repr(RECIPES[name]) == before


def test_names_and_table_agree() -> None:
    assert set(get_args(RecipeName)) == set(RECIPES)


def test_given_fields_stay_and_missing_ones_are_filled() -> None:
    filled = with_recipe({"sampling": {"max_new_tokens": 7}})
    assert filled["sampling"] == {**RECIPES["mgsr"]["sampling"], "max_new_tokens": 7}
    assert filled["scrg"] == RECIPES["mgsr"]["scrg"]
    assert [loss["kind"] for loss in filled["losses"]] == ["sft", "dac_kl", "span"]


def test_another_kind_takes_nothing_from_the_recipe_and_given_losses_replace_its_losses() -> None:
    filled = with_recipe({"sampling": {"kind": "on_policy"}, "losses": [{"kind": "forward_kl"}]})
    assert filled["sampling"] == {"kind": "on_policy"}
    assert filled["losses"] == [{"kind": "forward_kl"}]


def test_a_recipe_fills_a_field_of_the_data_and_leaves_the_rest_to_the_user() -> None:
    data = {"kind": "file", "path": "rows.jsonl", "dev_rows": 3}
    filled = with_recipe({"recipe": "seqkd", "data": data})
    assert filled["data"] == {**data, "responses": "teacher"}
    assert with_recipe({"recipe": "seqkd", "data": {**data, "responses": "given"}})["data"]["responses"] == "given"


def test_a_recipe_makes_no_data_up() -> None:
    with pytest.raises(ValidationError) as caught:
        DistillConfig.model_validate({"recipe": "seqkd", **{k: v for k, v in MINIMAL.items() if k != "data"}})
    assert [(error["loc"], error["type"]) for error in caught.value.errors()] == [(("data",), "missing")]


@pytest.mark.parametrize("before", RECIPES)
@pytest.mark.parametrize("after", RECIPES)
def test_another_recipe_means_what_it_means_from_the_start(before: str, after: str) -> None:
    old = DistillConfig.model_validate({**MINIMAL, "recipe": before, "training": {"seed": 7}})
    new = DistillConfig.model_validate({**without_recipe(old.model_dump(mode="json")), "recipe": after})
    assert new == DistillConfig.model_validate({**MINIMAL, "recipe": after, "training": {"seed": 7}})


def test_no_two_recipes_describe_the_same_run() -> None:
    configs = [DistillConfig.model_validate({**MINIMAL, "recipe": name}) for name in RECIPES]
    runs = [config.model_dump(exclude={"recipe"}) for config in configs]
    assert all(one != other for i, one in enumerate(runs) for other in runs[:i])


def test_the_input_is_not_changed() -> None:
    raw: dict[str, Any] = {"recipe": "seqkd", "scrg": {}, "data": {"responses": "given"}}
    with_recipe(raw)
    without_recipe(raw)
    assert raw == {"recipe": "seqkd", "scrg": {}, "data": {"responses": "given"}}


def test_distillm_starts_without_samples_whatever_the_default() -> None:
    config = DistillConfig.model_validate({**MINIMAL, "recipe": "distillm"})
    assert config.sampling.model_dump()["phi_start"] == 0


def test_the_paper_s_host_has_something_to_correct() -> None:
    """A job that says `adaptive_off_policy` and no more gets samples from its first step on."""
    config = DistillConfig.model_validate({**MINIMAL, "sampling": {"kind": "adaptive_off_policy"}})
    assert config.sampling.model_dump()["phi_start"] > 0
    assert config.scrg.rounds > 0
