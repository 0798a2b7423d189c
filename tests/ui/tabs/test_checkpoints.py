from __future__ import annotations

from tests.ui.conftest import SeededService
from ui.client import StillhouseClient
from ui.tabs import checkpoints
from ui.tabs import compare_actions as actions

SETTINGS = {"max_new_tokens": 16, "temperature": 0.0, "top_p": 1.0, "seed": 0, "template": "auto"}


def test_the_jobs_best_checkpoint_is_offered(api: StillhouseClient, seeded: SeededService) -> None:
    found = checkpoints.list_jobs(api, seeded.ids.succeeded)
    assert found["job"]["value"] == seeded.ids.succeeded
    assert [label for label, _ in found["step"]["choices"]] == ["100", "80 · the best", "60"]
    assert found["step"]["value"] == f"{seeded.ids.succeeded}@80"


def test_a_job_without_checkpoints_says_what_keeps_them(api: StillhouseClient, seeded: SeededService) -> None:
    found = checkpoints.list_steps(api, seeded.ids.queued)
    assert (found["step"]["choices"], found["step"]["value"]) == ([], None)
    assert "checkpoint_every" in found["note"]


def test_a_checkpoint_joins_the_models_once_and_there_are_four_places(
    api: StillhouseClient, seeded: SeededService
) -> None:
    own, pane = actions.models_of(api.job(seeded.ids.succeeded)), f"{seeded.ids.succeeded}@60"
    added = checkpoints.add(api, own, pane)["models"]
    assert added["value"] == [*own, pane]
    assert ("Checkpoint: sky 10 layers · step 60", pane) in added["choices"]
    assert checkpoints.add(api, added["value"], pane)["models"]["value"] == [*own, pane]
    assert "take one out" in checkpoints.add(api, added["value"], f"{seeded.ids.succeeded}@80")["note"]
    assert "Choose a job" in checkpoints.add(api, own, None)["note"]


def test_what_is_chosen_stays_chosen_when_the_list_is_read_again(api: StillhouseClient, seeded: SeededService) -> None:
    chosen = [*actions.models_of(api.job(seeded.ids.succeeded))[:1], f"{seeded.ids.succeeded}@60"]
    again = actions.list_models(api, seeded.ids.succeeded, chosen, select=False)["models"]
    assert chosen[1] in [value for _, value in again["choices"]]
    assert "value" not in again


def test_a_comparison_with_a_checkpoint_comes_back_from_its_address(
    api: StillhouseClient, seeded: SeededService
) -> None:
    shown = actions.show(api, seeded.ids.checkpointed)
    assert '<article class="sh-pane checkpoint"' in shown["panes"]
    assert "<span>Checkpoint</span><h3><bdi>sky 10 layers · step 60</bdi>" in shown["panes"]
    restored = actions.restore(api, seeded.ids.checkpointed)["models"]
    assert restored["value"] == list(api.comparison(seeded.ids.checkpointed).request.model_ids)
    assert set(restored["value"]) <= {value for _, value in restored["choices"]}


def test_one_that_is_gone_is_refused_by_name(api: StillhouseClient, seeded: SeededService) -> None:
    own = actions.models_of(api.job(seeded.ids.succeeded))
    note = actions.start(api, "why?", "", [own[0], f"{seeded.ids.succeeded}@40"], SETTINGS)["note"]
    assert "<code>model_ids.1</code>" in note
    assert "it has those of steps 60, 80, 100" in note


def test_an_api_that_is_away(nobody: StillhouseClient) -> None:
    assert set(checkpoints.list_jobs(nobody, "")) == {"banner"}
    assert set(checkpoints.add(nobody, [], "job_1@20")) == {"banner"}
