"""The tab as a browser gets it; what its buttons do is in test_compare_actions.py, how it feels in tests/e2e."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from app.core.compare_schemas import MAX_MODELS, ComparisonIn
from ui.client import StillhouseClient
from ui.layout import build_ui
from ui.tabs.compare import TEMPLATES


@pytest.fixture
def sent(nobody: StillhouseClient) -> Mapping[str, Mapping[str, Any]]:
    """What Gradio sends to a browser, by element id."""
    components = build_ui(nobody).get_config_file()["components"]
    return {one["props"]["elem_id"]: one["props"] for one in components if one["props"].get("elem_id")}


def test_as_many_models_as_the_api_takes_can_be_chosen(sent: Mapping[str, Mapping[str, Any]]) -> None:
    assert sent["compare-models"]["max_choices"] == MAX_MODELS


def test_every_template_offered_is_one_that_the_api_knows() -> None:
    for _, template in TEMPLATES:
        messages = [{"role": "user", "content": "?"}]
        asked = ComparisonIn.model_validate({"model_ids": ["a", "b"], "messages": messages, "template": template})
        assert asked.template == template


def test_what_makes_no_sense_yet_is_not_there(sent: Mapping[str, Mapping[str, Any]]) -> None:
    for button in ("compare-next", "compare-stop", "vote", "batch-stop"):
        assert sent[button]["visible"] is False, button
    assert sent["compare-go"]["visible"] is True
