from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.ui.conftest import SeededService
from ui.client import StillhouseClient
from ui.event_view import EventView
from ui.tabs import progress, progress_data
from ui.tabs.progress_data import read


def test_reading_goes_on_where_the_view_stopped_and_starts_over_for_another_job(
    api: StillhouseClient, seeded: SeededService
) -> None:
    first = read(api, seeded.ids.running, EventView()).view
    assert read(api, seeded.ids.running, first).view == first
    other = read(api, seeded.ids.failed, first).view
    assert (other.job_id, other.step.step if other.step else None) == (seeded.ids.failed, 3)


def test_a_long_history_is_read_over_several_ticks_also_of_a_job_that_has_ended(
    api: StillhouseClient, seeded: SeededService, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read(api, seeded.ids.succeeded, EventView())
    assert not whole.is_behind
    monkeypatch.setattr(progress_data, "EVENTS_PER_PAGE", 10)
    found, ticks = read(api, seeded.ids.succeeded, EventView()), 1
    assert found.view.cursor == 10  # a first reading is short: somebody looks at an empty page
    while found.is_behind:
        assert progress.show(found, now=datetime.now(UTC))["fast"].active
        found, ticks = read(api, seeded.ids.succeeded, found.view), ticks + 1
    assert ticks > 2
    assert found.view == whole.view
    assert not progress.show(found, now=datetime.now(UTC))["fast"].active


def test_overlays_leave_out_the_job_itself_and_jobs_that_are_gone(api: StillhouseClient, seeded: SeededService) -> None:
    asked = [seeded.ids.running, "job_none", "<script>", seeded.ids.succeeded]
    found = read(api, seeded.ids.running, EventView(), asked)
    assert [job.id for job, _ in found.overlays] == [seeded.ids.succeeded]
    assert found.problem is None


def test_an_api_that_is_away_is_a_problem_and_no_exception(nobody: StillhouseClient) -> None:
    found = read(nobody, "job_1", EventView())
    assert (found.job, found.problem.code if found.problem else "") == (None, "unreachable")
