from __future__ import annotations

from typing import get_args

import pytest

from app.core.schemas import JobStatus
from tests.ui.conftest import SeededService
from tests.ui.seed import HOSTILE
from ui.client import StillhouseClient
from ui.text import esc
from ui.views.job_actions import ALLOWED, LABELS, action_buttons, actions_of


def test_every_status_has_actions_and_every_action_a_label() -> None:
    assert set(ALLOWED) == set(get_args(JobStatus))
    assert {action for allowed in ALLOWED.values() for action in allowed} == set(LABELS)


@pytest.mark.parametrize(
    ("asked", "left"),
    [
        ({}, ["pause", "cancel", "clone"]),
        ({"pause_requested": True}, ["cancel", "clone"]),
        ({"cancel_requested": True}, ["clone"]),
    ],
)
def test_what_was_asked_already_is_not_offered(
    api: StillhouseClient, seeded: SeededService, asked: dict[str, bool], left: list[str]
) -> None:
    assert actions_of(api.job(seeded.ids.running).model_copy(update=asked)) == left


def test_a_button_says_which_job_it_is_about_and_names_stay_text(api: StillhouseClient, seeded: SeededService) -> None:
    html = action_buttons(api.job(seeded.ids.hostile))
    assert "<script" not in html
    assert f'aria-label="Delete: {esc(HOSTILE)}"' in html
