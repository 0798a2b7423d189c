"""The form as a browser gets it: which controls are there, and with what, before anybody has touched one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from ui import job_form
from ui.client import StillhouseClient
from ui.config_schema import ConfigSchema
from ui.form_values import is_shown
from ui.job_form import CONTROLS, WEIGHT
from ui.layout import build_ui

Props = Mapping[str, Mapping[str, Any]]


@pytest.fixture
def sent(nobody: StillhouseClient) -> Props:
    """What Gradio sends to a browser, by element id."""
    components = build_ui(nobody).get_config_file()["components"]
    return {one["props"]["elem_id"]: one["props"] for one in components if one["props"].get("elem_id")}


def element_id(key: str) -> str:
    # Two are shorter in the page than in the job.
    return "f-" + {"student_kind": "student", "sampling_kind": "sampling"}.get(key, key).replace(":", "-")


def test_only_what_the_first_job_has_is_there_at_once(sent: Props, schema: ConfigSchema) -> None:
    wanted = is_shown(job_form.first_job(schema), schema)
    assert {key: sent[element_id(key)]["visible"] for key in wanted} == wanted
    assert not all(wanted.values())


def test_every_control_is_in_the_form_and_says_what_the_job_beside_it_says(sent: Props, schema: ConfigSchema) -> None:
    beside = json.loads(sent["job-json"]["value"])
    assert beside == job_form.first_job(schema)
    keys = [control.key for control in CONTROLS] + [WEIGHT + kind for kind in schema.kinds("losses")]
    for key, value in job_form.values_of(beside, schema).items():
        assert key in keys
        if value not in (None, ""):
            assert sent[element_id(key)]["value"] == value, key
