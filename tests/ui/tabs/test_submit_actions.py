from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.ui.conftest import SeededService
from ui import job_form
from ui.client import StillhouseClient
from ui.config_schema import ConfigSchema
from ui.tabs import submit_actions as actions
from ui.tabs.submit_actions import Entered


def by_form(text: str, schema: ConfigSchema, **values: object) -> Entered:
    return Entered(text, job_form.values_of(job_form.parse(text), schema) | values, "form")


def by_json(text: str) -> Entered:
    return Entered(text, {}, "json")


@pytest.fixture
def text(schema: ConfigSchema) -> str:
    return job_form.dump(job_form.first_job(schema))


def test_an_untouched_form_takes_the_newest_data_set_and_teacher(
    api: StillhouseClient, schema: ConfigSchema, text: str
) -> None:
    offer = actions.read_offer(api)["offer"]
    untouched = job_form.parse(text)
    taken = actions.take_offer(by_form(text, schema), untouched, schema, offer)
    config = json.loads(taken["json"])["config"]
    assert config["data"]["dataset_id"] == taken["dataset"]["value"] == offer.datasets[0].id
    assert config["teacher"]["model"] == taken["teacher"]["value"] == offer.teachers[0]


def test_what_was_typed_while_the_api_was_asked_is_kept(api: StillhouseClient, schema: ConfigSchema, text: str) -> None:
    offer = actions.read_offer(api)["offer"]
    untouched = job_form.parse(text)
    taken = actions.take_offer(by_form(text, schema, name="typed", teacher="mine"), untouched, schema, offer)
    job = json.loads(taken["json"])
    assert (job["name"], job["config"]["teacher"]["model"]) == ("typed", "mine")


def test_no_offer_changes_nothing(nobody: StillhouseClient, schema: ConfigSchema, text: str) -> None:
    assert set(actions.read_offer(nobody)) == {"banner"}
    assert actions.take_offer(by_json(text), {}, schema, None) == {}


def test_form_recipe_and_json_follow_each_other(schema: ConfigSchema, text: str) -> None:
    text = actions.form_changed(by_form(text, schema, max_steps=7.0), schema)["json"]
    assert json.loads(text)["config"]["training"]["max_steps"] == 7
    changed = actions.recipe_chosen(text, "kd", schema)
    assert changed["weight:forward_kl"] == 1.0
    assert actions.json_changed(changed["json"], schema)["max_steps"] == 7


def test_json_that_says_what_the_form_says_is_not_written_again(schema: ConfigSchema, text: str) -> None:
    assert "json" not in actions.form_changed(by_form(text, schema), schema)
    assert "json" not in actions.form_changed(Entered(text, {"name": "older"}, "json"), schema)


def test_the_side_that_was_edited_last_is_what_counts(schema: ConfigSchema, text: str) -> None:
    """Also before the other side has caught up: a quick reader presses Submit right after the last key."""
    entered = by_form(text, schema, name="just typed")
    assert entered.job(schema)["name"] == "just typed"
    assert Entered(text, entered.values, "json").job(schema)["name"] == ""


def test_broken_json_is_never_overwritten(schema: ConfigSchema) -> None:
    for answer in (
        actions.form_changed(by_json("{"), schema),
        actions.recipe_chosen("{", "kd", schema),
        actions.json_changed("{", schema),
    ):
        assert set(answer) == {"json_note"}
        assert "Line 1" in answer["json_note"]


def ready(seeded: SeededService, teacher: Path, schema: ConfigSchema, **training: int) -> str:
    job = job_form.first_job(schema, teacher=str(teacher), dataset_id=seeded.ids.dataset, layers=2)
    job["name"] = "mine"
    job["config"]["training"] |= training
    job["config"]["sampling"]["max_new_tokens"] = 8
    return job_form.dump(job)


def test_check_shows_what_the_job_needs(
    api: StillhouseClient, seeded: SeededService, tiny_teacher: Path, schema: ConfigSchema
) -> None:
    result = actions.check(api, by_json(ready(seeded, tiny_teacher, schema)), schema)["result"]
    assert "Ready to run" in result
    assert "Memory, about" in result


def test_submit_opens_the_jobs_progress_and_twice_is_one_job(
    api: StillhouseClient, seeded: SeededService, tiny_teacher: Path, schema: ConfigSchema
) -> None:
    text = ready(seeded, tiny_teacher, schema)
    first, second = (actions.submit(api, by_json(text), "one key", schema) for _ in range(2))
    assert first["job_id"] == second["job_id"]
    assert first["tabs"].selected == "progress"
    assert first["key"] != "one key"
    api.cancel(first["job_id"])


def test_a_refusal_is_listed_and_marked_at_its_field(
    api: StillhouseClient, seeded: SeededService, tiny_teacher: Path, schema: ConfigSchema
) -> None:
    refused = actions.submit(api, by_json(ready(seeded, tiny_teacher, schema, max_steps=0)), "k", schema)
    assert "config.training.max_steps" in refused["result"]
    assert refused["max_steps"]["elem_classes"] == ["sh-wrong"]
    assert "job_id" not in refused


def test_upload_becomes_the_jobs_data(api: StillhouseClient, tiny_rows: Path, text: str) -> None:
    uploaded = actions.upload(api, str(tiny_rows), text)
    assert "24 rows" in uploaded["data_note"]
    assert json.loads(uploaded["json"])["config"]["data"]["dataset_id"] == uploaded["dataset"]["value"]


def test_a_refused_upload_names_the_row(api: StillhouseClient, tmp_path: Path, text: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "a"}\n{"prompt": ""}\n')
    uploaded = actions.upload(api, str(file), text)
    assert "row 2" in uploaded["data_note"]


def test_an_api_that_is_away_gets_a_banner(nobody: StillhouseClient, schema: ConfigSchema, text: str) -> None:
    assert "does not answer" in actions.submit(nobody, by_json(text), "k", schema)["banner"]


def test_a_draft_fills_form_and_json_once(schema: ConfigSchema) -> None:
    draft = job_form.dump({"name": "copy", "config": {"recipe": "kd", "teacher": {"model": "t"}, "losses": []}})
    taken = actions.take_draft(draft, schema)
    assert (taken["json"], taken["draft"]) == (draft, "")
    assert (taken["name"]["value"], taken["recipe"]["value"], taken["teacher"]["value"]) == ("copy", "kd", "t")
    assert taken["phi_start"]["visible"] is False
    assert actions.take_draft("", schema) == {}


def test_data_is_shown_as_rows_and_tokens(api: StillhouseClient, tiny_teacher: Path, tiny_rows: Path) -> None:
    dataset = api.upload_dataset(tiny_rows, name="mine").id
    config = {"teacher": {"model": str(tiny_teacher)}, "data": {"kind": "dataset", "dataset_id": dataset}}
    schema = ConfigSchema(api.config_schema().json_schema)
    shown = actions.show_data(api, by_json(job_form.dump({"config": config})), schema)["preview"]
    assert "Row 1 as the model reads it" in shown
    assert "First 3 rows, as read" in shown
    assert 'class="sh-token loss"' in shown
    bare = {"data": config["data"]}
    assert "Choose a teacher" in actions.show_data(api, by_json(job_form.dump({"config": bare})), schema)["preview"]
    gone = {"data": {"dataset_id": "ds_none"}}
    assert "cannot be shown" in actions.show_data(api, by_json(job_form.dump({"config": gone})), schema)["preview"]
    assert "data set first" in actions.show_data(api, by_json("{}"), schema)["preview"]
    wrong = {**config, "teacher": {"model": "/no/such"}}
    refused = actions.show_data(api, by_json(job_form.dump({"config": wrong})), schema)["preview"]
    assert "First 3 rows" in refused
    assert "model_not_found" in refused
