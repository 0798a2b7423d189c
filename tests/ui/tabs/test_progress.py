from __future__ import annotations

import json
from datetime import UTC, datetime

from tests.ui.conftest import SeededService
from ui.client import StillhouseClient
from ui.event_view import EventView
from ui.tabs import progress
from ui.tabs.progress_data import read
from ui.views.jobs import NO_CHOICE, NOT_READ

NOW = datetime.now(UTC)


def test_a_running_job_fills_every_part_and_keeps_the_timer_going(api: StillhouseClient, seeded: SeededService) -> None:
    shown = progress.show(read(api, seeded.ids.running, EventView()), now=NOW)
    assert shown["fast"].active
    titles = [chart["title"] for chart in json.loads(shown["charts"])]
    assert titles[:3] == ["Training losses", "Held-out divergence", "Held-out agreement"]
    assert "Where corrections fall" in titles
    assert "Why is the sky blue?" in shown["answers"]
    assert "Job is queued" in shown["log"]
    assert json.loads(shown["description"])["config"]["student"]["layers"] == 12
    assert (shown["banner"], shown["diff"]) == ("", "")


def test_an_ended_job_stops_the_timer(api: StillhouseClient, seeded: SeededService) -> None:
    for job_id in (seeded.ids.succeeded, seeded.ids.failed):
        assert not progress.show(read(api, job_id, EventView()), now=NOW)["fast"].active


def test_other_jobs_are_laid_over_with_what_they_differ_in(api: StillhouseClient, seeded: SeededService) -> None:
    shown = progress.show(read(api, seeded.ids.running, EventView(), [seeded.ids.succeeded]), now=NOW)
    losses = json.loads(shown["charts"])[0]
    assert len(losses["data"]) == 8
    assert "<code>student.<wbr>layers</code>" in shown["diff"]


def test_the_jobs_to_lay_over_are_the_others_and_those_of_the_address(
    api: StillhouseClient, seeded: SeededService
) -> None:
    overlays = [seeded.ids.failed, "job_gone"]
    found = progress.overlay_choices(api, seeded.ids.running, overlays, select=True)["overlays"]
    offered = [job_id for _, job_id in found["choices"]]
    assert seeded.ids.failed in offered
    assert seeded.ids.running not in offered
    assert found["value"] == [seeded.ids.failed]


def test_a_job_without_a_measurement_says_when_its_curves_come(api: StillhouseClient, seeded: SeededService) -> None:
    shown = progress.show(read(api, seeded.ids.queued, EventView()), now=NOW)
    assert "No curves yet." in shown["diff"]
    assert json.loads(shown["charts"]) == []


def test_no_job_and_an_unknown_job(api: StillhouseClient) -> None:
    shown = progress.show(read(api, "", EventView()), now=NOW)
    assert (shown["head"], shown["detail"].visible) == (NO_CHOICE, False)
    shown = progress.show(read(api, "job_none", EventView()), now=NOW)
    assert "This job cannot be shown." in shown["head"]
    assert "href='?tab=jobs'" in shown["head"]
    assert shown["banner"] == ""


def test_an_api_that_is_away_leaves_what_is_shown_under_a_banner_and_is_asked_again(nobody: StillhouseClient) -> None:
    shown = progress.show(read(nobody, "job_1", EventView("job_1", cursor=7)), now=NOW)
    assert set(shown) == {"banner", "view", "fast"}
    assert "does not answer" in shown["banner"]
    assert shown["fast"].active
    assert set(progress.look(nobody, "job_1")) == {"banner"}


def test_a_page_opened_while_the_api_is_away_does_not_say_that_no_job_is_chosen(nobody: StillhouseClient) -> None:
    assert progress.show(read(nobody, "job_1", EventView()), now=NOW)["head"] == NOT_READ


def test_the_slow_look_wakes_the_timer_for_a_job_that_runs(api: StillhouseClient, seeded: SeededService) -> None:
    assert progress.look(api, seeded.ids.running)["fast"].active
    assert "fast" not in progress.look(api, seeded.ids.succeeded)
    assert progress.look(api, "") == {}
