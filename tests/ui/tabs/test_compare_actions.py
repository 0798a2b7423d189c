from __future__ import annotations

from typing import Any

import pytest

from tests.ui.conftest import SeededService
from ui.client import StillhouseClient
from ui.tabs import compare_actions as actions

SETTINGS: dict[str, Any] = {"max_new_tokens": 16.0, "temperature": 0.5, "top_p": 1, "seed": 3, "template": "auto"}


@pytest.fixture
def three(api: StillhouseClient, seeded: SeededService) -> list[str]:
    return actions.models_of(api.job(seeded.ids.succeeded))


def test_request_has_one_setting_for_all_and_no_empty_system_prompt() -> None:
    request = actions.request_of("why?", " ", ["a", "b"], SETTINGS)
    assert request == {
        "model_ids": ["a", "b"],
        "messages": [{"role": "user", "content": "why?"}],
        "max_new_tokens": 16,
        "temperature": 0.5,
        "top_p": 1,
        "seed": 3,
        "template": "auto",
    }
    assert actions.request_of("why?", "Be brief.", ["a"], SETTINGS)["messages"][0]["role"] == "system"


def test_the_jobs_own_models_are_chosen(api: StillhouseClient, seeded: SeededService, three: list[str]) -> None:
    assert len(three) == 3
    update = actions.list_models(api, seeded.ids.succeeded, [], select=True)["models"]
    assert update["value"] == three
    assert [label.split(":")[0] for label, _ in update["choices"]].count("Student") == 2


def test_a_student_that_came_out_joins_but_a_readers_choice_stays(
    api: StillhouseClient, seeded: SeededService, three: list[str]
) -> None:
    joined = actions.list_models(api, seeded.ids.succeeded, three[:2], select=False)["models"]
    assert joined["value"] == three
    kept = actions.list_models(api, seeded.ids.succeeded, three[1:], select=False)["models"]
    assert "value" not in kept


@pytest.mark.parametrize(("prompt", "num_models", "said"), [(" ", 2, "prompt"), ("p", 1, "two to four")])
def test_what_is_missing_is_said_without_asking(
    nobody: StillhouseClient, prompt: str, num_models: int, said: str
) -> None:
    assert said in actions.start(nobody, prompt, "", ["mdl_1"] * num_models, SETTINGS)["note"]


def test_start_queues_and_puts_the_id_into_the_address(api: StillhouseClient, three: list[str]) -> None:
    started = actions.start(api, "why?", "", three, SETTINGS)
    assert started["timer"].active
    shown = actions.show(api, started["id"])
    assert shown["timer"].active
    assert "Waiting for a worker" in shown["panes"]


def test_a_refused_comparison_names_the_field(api: StillhouseClient, three: list[str]) -> None:
    note = actions.start(api, "why?", "", three, SETTINGS | {"top_p": 7})["note"]
    assert "<code>top_p</code>" in note


def test_show_ends_the_polling_when_done(api: StillhouseClient, seeded: SeededService) -> None:
    assert not actions.show(api, seeded.ids.comparison)["timer"].active
    assert actions.show(api, "")["panes"] == actions.panes.EMPTY
    gone = actions.show(api, "cmp_none")
    assert "cannot be shown" in gone["panes"]
    assert not gone["timer"].active


def test_an_api_that_is_away_is_asked_again(nobody: StillhouseClient) -> None:
    shown = actions.show(nobody, "cmp_1")
    assert set(shown) == {"banner"}


def test_controls_come_back_from_the_stored_request(api: StillhouseClient, seeded: SeededService) -> None:
    restored = actions.restore(api, seeded.ids.comparison)
    assert (restored["prompt"], restored["system"], restored["seed"]) == ("Why is the sky blue?", "", 0)
    assert len(restored["models"]["value"]) == 3


def test_an_address_with_job_and_comparison_shows_the_comparisons_models(
    api: StillhouseClient, seeded: SeededService, three: list[str]
) -> None:
    """Whichever of the two is told first; and the job's, once the reader chooses another one, or that one again."""
    job, other = seeded.ids.succeeded, seeded.ids.running
    asked = list(api.comparison(seeded.ids.checkpointed).request.model_ids)
    opened = actions.open_at(api, job, seeded.ids.checkpointed)
    assert opened["models"]["value"] == asked != three
    assert actions.choose_job(api, job, opened["listed_for"]) == {}
    chosen = actions.choose_job(api, other, opened["listed_for"])
    assert chosen["models"]["value"] == actions.models_of(api.job(other))
    assert actions.choose_job(api, job, chosen["listed_for"])["models"]["value"] == three
    assert actions.open_at(api, job, "")["models"]["value"] == three


def test_a_blind_comparison_is_of_two_and_says_nothing_before_the_vote(
    api: StillhouseClient, nobody: StillhouseClient, three: list[str]
) -> None:
    assert "choose two" in actions.start(nobody, "why?", "", three, SETTINGS, blind=True)["note"]
    started = actions.start(api, "why?", "", three[:2], SETTINGS, blind=True)
    stored = api.comparison(started["id"])
    assert (stored.hidden, list(stored.request.model_ids)) == (True, ["A", "B"])
    restored = actions.restore(api, started["id"])
    assert restored["blind"]
    assert "value" not in restored["models"]


def test_a_vote_reveals(api: StillhouseClient, seeded: SeededService, three: list[str]) -> None:
    before = actions.show(api, seeded.ids.blind)
    assert before["votes"].visible
    assert not before["next"].visible
    assert before["ended"] == ""
    assert "Student" not in before["panes"]
    assert "3b3b3b" not in before["panes"]
    after = actions.vote(api, seeded.ids.blind, "b")
    assert not after["votes"].visible
    assert after["ended"] == seeded.ids.blind
    assert "You said: B is better" in after["panes"]
    assert "3b3b3b" in after["panes"]
    assert "conflict" in actions.vote(api, seeded.ids.blind, "a")["note"]


def test_buttons_follow_the_status(api: StillhouseClient, seeded: SeededService, three: list[str]) -> None:
    ended = actions.show(api, seeded.ids.comparison)
    assert (ended["stop"].visible, ended["next"].visible) == (False, True)
    started = actions.start(api, "why?", "", three, SETTINGS)
    assert actions.show(api, started["id"])["stop"].visible
    actions.stop(api, started["id"])
    stopped = actions.show(api, started["id"])
    assert not stopped["timer"].active
    assert not stopped["stop"].visible


def test_a_conversation_goes_on_with_each_models_own_answer(api: StillhouseClient, seeded: SeededService) -> None:
    started = actions.go_on(api, seeded.ids.comparison, "And at night?", SETTINGS)
    found = api.comparison(started["id"])
    said = {answer.model_id: answer.text for answer in api.comparison(seeded.ids.comparison).answers}
    for model_id in found.request.model_ids:
        assert [turn.content for turn in found.history[model_id]] == ["Why is the sky blue?", said[model_id]]
    assert "prompt" in actions.go_on(api, seeded.ids.comparison, "  ", SETTINGS)["note"]


def test_models_sent_from_another_tab_are_chosen(api: StillhouseClient, three: list[str]) -> None:
    assert actions.take(api, "") == {}
    assert actions.take(api, f"{three[0]},mdl_gone,{three[2]}")["models"]["value"] == [three[0], three[2]]
