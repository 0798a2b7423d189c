from __future__ import annotations

import json
from typing import Any

import pytest

from app.core.job_config import DistillConfig
from app.core.recipes import RECIPES
from ui import job_form
from ui.config_schema import ConfigSchema


@pytest.fixture
def job(schema: ConfigSchema) -> job_form.Job:
    return job_form.first_job(schema, teacher="org/teacher", dataset_id="ds_1")


def changed(job: job_form.Job, schema: ConfigSchema, **values: Any) -> job_form.Job:
    return job_form.with_values(job, job_form.values_of(job, schema) | values, schema)


def test_first_job_is_one_that_the_config_accepts_and_means_its_defaults(
    job: job_form.Job, schema: ConfigSchema
) -> None:
    bare = {section: job["config"][section] for section in ("teacher", "student", "data")}
    assert DistillConfig.model_validate(job["config"]) == DistillConfig.model_validate(bare)


def test_values_put_back_change_nothing(job: job_form.Job, schema: ConfigSchema) -> None:
    assert changed(job, schema) == job


def test_a_value_reaches_its_place_as_the_type_it_wants(job: job_form.Job, schema: ConfigSchema) -> None:
    new = changed(job, schema, name="n", max_steps=20.0, learning_rate=1e-4)
    assert new["name"] == "n"
    assert json.dumps(new["config"]["training"]["max_steps"]) == "20"
    assert new["config"]["training"]["learning_rate"] == 1e-4
    assert job["config"]["training"]["max_steps"] == 1000  # a copy


def test_what_the_form_has_no_control_for_stays(job: job_form.Job, schema: ConfigSchema) -> None:
    job["config"]["scrg"]["position"] = "random"
    job["config"]["losses"][1]["top_k"] = 8
    job["config"]["evaluation"] = {"samples": 5}
    new = changed(job, schema, rounds=3, **{"weight:dac_kl": 2.0})
    assert new["config"]["scrg"] == {**job["config"]["scrg"], "rounds": 3}
    assert new["config"]["losses"][1] == {"kind": "dac_kl", "weight": 2.0, "top_k": 8}
    assert new["config"]["evaluation"] == {"samples": 5}


def test_another_kind_drops_the_fields_it_does_not_have(job: job_form.Job, schema: ConfigSchema) -> None:
    assert job["config"]["sampling"]["batches_per_generation"] == 4
    other = changed(job, schema, sampling_kind="on_policy")
    assert other["config"]["sampling"]["batches_per_generation"] == 4
    new = changed(job, schema, sampling_kind="ground_truth", student_kind="checkpoint", checkpoint="org/small")
    assert new["config"]["sampling"] == {
        "kind": "ground_truth",
        "max_new_tokens": 128,
        "candidates": 2,
        "skip_known": True,
    }
    assert new["config"]["student"] == {"kind": "checkpoint", "model": "org/small"}


def test_weight_0_leaves_a_loss_out_and_a_new_one_comes_last(job: job_form.Job, schema: ConfigSchema) -> None:
    new = changed(job, schema, **{"weight:sft": 0, "weight:reverse_kl": 0.5})
    assert [loss["kind"] for loss in new["config"]["losses"]] == ["dac_kl", "span", "reverse_kl"]


def test_an_emptied_number_falls_back_to_the_default_and_an_emptied_text_is_empty(
    job: job_form.Job, schema: ConfigSchema
) -> None:
    new = changed(job, schema, seed=None, teacher=None)
    assert "seed" not in new["config"]["training"]
    assert new["config"]["teacher"] == {"model": ""}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_says_in_the_form_what_it_says_anywhere(recipe: str, job: job_form.Job, schema: ConfigSchema) -> None:
    """What is spelled out for the form is what a job that names the recipe alone would be filled with."""
    config = job_form.with_recipe_defaults(job, recipe, schema)["config"]
    bare = {section: config[section] for section in ("teacher", "student", "data")}
    spelled, named = (
        DistillConfig.model_validate(raw).model_dump(exclude={"training", "evaluation"})
        for raw in (config, {**bare, "recipe": recipe})
    )
    assert spelled == named


def test_recipe_resets_its_sections_only(job: job_form.Job, schema: ConfigSchema) -> None:
    job["config"]["training"]["max_steps"] = 5
    new = job_form.with_recipe_defaults(job, "kd", schema)["config"]
    assert (new["recipe"], new["sampling"]["kind"], new["scrg"]["rounds"]) == ("kd", "ground_truth", 0)
    assert new["losses"] == [{"kind": "forward_kl", "weight": 1.0}]
    assert (new["training"]["max_steps"], new["teacher"]) == (5, {"model": "org/teacher"})
    assert list(new)[:2] == ["recipe", "teacher"]


def test_a_recipe_that_sets_a_field_of_the_data_keeps_the_data_set(job: job_form.Job, schema: ConfigSchema) -> None:
    seqkd = job_form.with_recipe_defaults(job, "seqkd", schema)
    assert seqkd["config"]["data"] == {**job["config"]["data"], "responses": "teacher"}
    assert job_form.with_recipe_defaults(seqkd, "kd", schema)["config"]["data"] == job["config"]["data"]


def test_values_of_a_short_job_are_what_its_recipe_means(schema: ConfigSchema) -> None:
    values = job_form.values_of({"config": {"recipe": "sft"}}, schema)
    assert (values["weight:sft"], values["weight:span"], values["rounds"]) == (1.0, 0, 0)
    assert values["max_steps"] is None


@pytest.mark.parametrize(
    "odd", [{}, {"config": 3}, {"config": {"losses": "x", "training": []}}, {"config": {"recipe": "?"}}]
)
def test_values_of_an_odd_job_do_not_fail(odd: job_form.Job, schema: ConfigSchema) -> None:
    assert job_form.values_of(odd, schema)["max_steps"] is None


@pytest.mark.parametrize(
    ("text", "where"), [("{", "Line 1"), ('{"a": 1,\n}', "Line 2"), ("[]", "object"), ("", "Line 1")]
)
def test_text_that_is_no_job_says_where(text: str, where: str) -> None:
    with pytest.raises(job_form.NotJson, match=where):
        job_form.parse(text)


def test_an_errors_path_finds_its_control(job: job_form.Job) -> None:
    assert job_form.control_at("config.student.layers", job) == "layers"
    assert job_form.control_at("config.losses.2.weight", job) == "weight:span"
    assert job_form.control_at("config.losses.1.top_k", job) is None
    assert job_form.control_at("config.losses.9.weight", job) is None
    assert job_form.control_at("name", job) == "name"


def test_suggestions_fill_only_what_is_empty(schema: ConfigSchema) -> None:
    job = job_form.first_job(schema, teacher="mine")
    new = job_form.suggest(job, {"teacher": "theirs", "dataset": "ds_2"})
    assert (new["config"]["teacher"]["model"], new["config"]["data"]["dataset_id"]) == ("mine", "ds_2")


def test_who_writes_the_responses_is_the_recipes_until_it_is_chosen(schema: ConfigSchema) -> None:
    job = job_form.first_job(schema)
    assert job_form.values_of(job, schema)["responses"] == "given"
    by_teacher = job_form.with_recipe_defaults(job, "seqkd", schema)
    assert by_teacher["config"]["data"]["responses"] == "teacher"
    back = job_form.with_recipe_defaults(by_teacher, "mgsr", schema)
    assert back["config"]["data"]["responses"] == "given"
    chosen = job_form.with_values(back, job_form.values_of(back, schema) | {"responses": "student"}, schema)
    assert chosen["config"]["data"]["responses"] == "student"
