from __future__ import annotations

import json
from datetime import UTC, datetime

from tests.ui.conftest import SeededService
from ui.client import StillhouseClient
from ui.event_view import EventView
from ui.tabs import progress
from ui.views.jobs import NO_CHOICE, NOT_READ

NOW = datetime.now(UTC)


def test_a_running_job_fills_every_part_and_keeps_the_timer_going(api: StillhouseClient, seeded: SeededService) -> None:
    shown = progress.show(progress.read(api, seeded.ids.running, EventView()), now=NOW)
    assert shown["fast"].active
    assert shown["cancel"].visible
    titles = [chart["title"] for chart in json.loads(shown["charts"])]
    assert titles[:3] == ["Training losses", "Held-out divergence", "Held-out agreement"]
    assert "Why is the sky blue?" in shown["answers"]
    assert "Job is queued" in shown["log"]
    assert json.loads(shown["description"])["config"]["student"]["layers"] == 12
    assert shown["banner"] == ""


def test_an_ended_job_stops_the_timer(api: StillhouseClient, seeded: SeededService) -> None:
    for job_id in (seeded.ids.succeeded, seeded.ids.failed):
        shown = progress.show(progress.read(api, job_id, EventView()), now=NOW)
        assert not shown["fast"].active
        assert not shown["cancel"].visible


def test_reading_goes_on_where_the_view_stopped_and_starts_over_for_another_job(
    api: StillhouseClient, seeded: SeededService
) -> None:
    first = progress.read(api, seeded.ids.running, EventView()).view
    assert progress.read(api, seeded.ids.running, first).view == first
    other = progress.read(api, seeded.ids.failed, first).view
    assert (other.job_id, other.step.step if other.step else None) == (seeded.ids.failed, 3)


def test_no_job_and_an_unknown_job(api: StillhouseClient) -> None:
    shown = progress.show(progress.read(api, "", EventView()), now=NOW)
    assert (shown["head"], shown["detail"].visible) == (NO_CHOICE, False)
    shown = progress.show(progress.read(api, "job_none", EventView()), now=NOW)
    assert "This job cannot be shown." in shown["head"]
    assert "<tr" in shown["table"]
    assert shown["banner"] == ""


def test_an_api_that_is_away_leaves_what_is_shown_under_a_banner_and_is_asked_again(nobody: StillhouseClient) -> None:
    shown = progress.show(progress.read(nobody, "job_1", EventView("job_1", cursor=7)), now=NOW)
    assert set(shown) == {"banner", "view", "fast"}
    assert "does not answer" in shown["banner"]
    assert shown["fast"].active
    assert set(progress.show_list(nobody, "job_1", now=NOW)) == {"banner"}


def test_a_page_opened_while_the_api_is_away_does_not_say_that_no_job_is_chosen(nobody: StillhouseClient) -> None:
    assert progress.show(progress.read(nobody, "job_1", EventView()), now=NOW)["head"] == NOT_READ


def test_the_list_wakes_the_timer_for_a_job_that_runs(api: StillhouseClient, seeded: SeededService) -> None:
    assert progress.show_list(api, seeded.ids.running, now=NOW)["fast"].active
    assert "fast" not in progress.show_list(api, seeded.ids.succeeded, now=NOW)


def test_a_refused_cancel_is_told(api: StillhouseClient, seeded: SeededService) -> None:
    assert "conflict" in progress.ask_cancel(api, seeded.ids.succeeded)
