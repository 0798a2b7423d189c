from __future__ import annotations

import json

import pytest

from app.core.job_config import DistillConfig
from tests.ui.conftest import SeededService
from ui.client import StillhouseClient
from ui.tabs.job_actions import Done, act


def test_what_the_status_forbids_is_refused_with_a_reason(api: StillhouseClient, seeded: SeededService) -> None:
    for action in ("cancel", "pause", "resume"):
        assert "conflict" in act(api, seeded.ids.succeeded, action, "yes").note


def test_a_clone_opens_the_stored_description_in_the_form(api: StillhouseClient, seeded: SeededService) -> None:
    draft = json.loads(act(api, seeded.ids.running, "clone", "yes").draft)
    assert draft["name"] == "sky 12 layers, kd (copy)"
    stored = api.job(seeded.ids.running).config
    assert DistillConfig.model_validate(draft["config"]).model_dump(mode="json") == stored


def test_pause_resume_cancel_retry_and_delete_reach_the_api(api: StillhouseClient, seeded: SeededService) -> None:
    """One queued job through all of them; no worker runs, so every step acts at once."""
    job_id = seeded.ids.queued
    steps = [
        ("pause", "paused"),
        ("resume", "queued"),
        ("cancel", "cancelled"),
        ("retry", "queued"),
        ("cancel", "cancelled"),
    ]
    for action, status in steps:
        assert act(api, job_id, action, "clean") == Done()
        assert api.job(job_id).status == status
    assert act(api, job_id, "delete", "yes") == Done(deleted=True)
    assert "not_found" in act(api, job_id, "clone", "yes").note


def test_an_action_that_no_button_has_is_a_bug(api: StillhouseClient) -> None:
    with pytest.raises(ValueError, match="no action"):
        act(api, "job_1", "explode", "yes")
