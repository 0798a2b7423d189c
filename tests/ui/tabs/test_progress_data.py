from __future__ import annotations

from tests.ui.conftest import SeededService
from ui.client import StillhouseClient
from ui.event_view import EventView
from ui.tabs.progress_data import read


def test_reading_goes_on_where_the_view_stopped_and_starts_over_for_another_job(
    api: StillhouseClient, seeded: SeededService
) -> None:
    first = read(api, seeded.ids.running, EventView()).view
    assert read(api, seeded.ids.running, first).view == first
    other = read(api, seeded.ids.failed, first).view
    assert (other.job_id, other.step.step if other.step else None) == (seeded.ids.failed, 3)


def test_overlays_leave_out_the_job_itself_and_jobs_that_are_gone(api: StillhouseClient, seeded: SeededService) -> None:
    asked = [seeded.ids.running, "job_none", "<script>", seeded.ids.succeeded]
    found = read(api, seeded.ids.running, EventView(), asked)
    assert [job.id for job, _ in found.overlays] == [seeded.ids.succeeded]
    assert found.problem is None


def test_an_api_that_is_away_is_a_problem_and_no_exception(nobody: StillhouseClient) -> None:
    found = read(nobody, "job_1", EventView())
    assert (found.job, found.problem.code if found.problem else "") == (None, "unreachable")
