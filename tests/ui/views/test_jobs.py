from __future__ import annotations

from datetime import UTC, datetime, timedelta

from app.core.events import PhaseProgress, Warned
from app.core.schemas import MetricsOut, Page, Series
from tests.ui.conftest import SeededService
from tests.ui.seed import HOSTILE
from ui.client import StillhouseClient
from ui.event_view import EventView, fold
from ui.views.jobs import NO_JOBS, NO_MATCH, callouts, chip, job_head, jobs_table

NOW = datetime.now(UTC)
NOTHING = MetricsOut(series=())


def test_table_has_a_row_and_a_link_per_job_and_marks_the_chosen(api: StillhouseClient, seeded: SeededService) -> None:
    table = jobs_table(api.jobs(), chosen=seeded.ids.running, now=NOW)
    assert table.count("<tr data-key=") == 5
    assert f'href="?job={seeded.ids.failed}&amp;tab=progress"' in table
    assert table.count(f'data-job="{seeded.ids.running}" aria-current="true">') == 1
    assert "46 / 100" in table
    assert "SmolLM2-135M-Instruct</bdi> → <bdi>12 layers" in table


def test_table_without_jobs_says_what_to_do() -> None:
    assert jobs_table(Page(data=[], has_more=False), chosen="", now=NOW) == NO_JOBS
    assert jobs_table(Page(data=[], has_more=False), chosen="", now=NOW, filtered=True) == NO_MATCH


def test_progress_says_what_the_reader_waits_for(api: StillhouseClient, seeded: SeededService) -> None:
    def row(job_id: str, **changes: object) -> str:
        job = api.job(job_id).model_copy(update=changes)
        return jobs_table(Page(data=[job], has_more=False), chosen="", now=NOW)

    assert "46 / 100 · 2 min 4 s left" in row(seeded.ids.running, eta_s=124.0)
    assert "0 / 100 · no worker &lt;runs&gt;" in row(seeded.ids.queued, waiting_reason="no worker <runs>")
    assert "0 / 100 · tried again in 30 s" in row(seeded.ids.queued, not_before=NOW + timedelta(seconds=30))
    assert "<span>0 / 100</span>" in row(seeded.ids.queued)


def test_names_and_paths_never_become_markup(api: StillhouseClient, seeded: SeededService) -> None:
    job = api.job(seeded.ids.hostile)
    for html in (jobs_table(api.jobs(), chosen="", now=NOW), job_head(job, EventView(job.id), NOTHING, now=NOW)):
        assert "<script" not in html
        assert "<img" not in html
        assert "&lt;script&gt;" in html
    assert job.name == HOSTILE


def test_head_of_a_running_job(api: StillhouseClient, seeded: SeededService) -> None:
    job = api.job(seeded.ids.running)
    view = fold(EventView(job.id), api.events(job.id, after=0, limit=500).data)
    head = job_head(job, view, api.metrics(job.id, max_points=100), now=NOW)
    assert "<b>46</b><small>of 100</small>" in head
    assert "<b>2 min 4 s</b>" in head
    assert "<b>Training</b>" in head
    assert "2.10 at the start" in head


def test_head_says_the_phase_and_how_far_it_is(api: StillhouseClient, seeded: SeededService) -> None:
    view = EventView(phase=PhaseProgress(phase="teacher_responses", done=24, total=300))
    head = job_head(api.job(seeded.ids.running), view, NOTHING, now=NOW)
    assert "<b>Teacher writes responses</b><small>24 of 300</small>" in head


def test_head_of_an_ended_job(api: StillhouseClient, seeded: SeededService) -> None:
    one = MetricsOut(series=[Series(name="eval/kl_ts", points=[(0, 2.0)])])
    head = job_head(api.job(seeded.ids.succeeded), EventView(), one, now=NOW)
    assert "<b>Finished</b>" in head
    assert "<span>Took</span><b>4 min</b>" in head
    assert "<b>2</b><small>at step 0</small>" in head


def test_chip_says_stopping_until_the_worker_has_stopped(api: StillhouseClient, seeded: SeededService) -> None:
    job = api.job(seeded.ids.running)
    assert ">running<" in chip(job)
    assert ">stopping<" in chip(job.model_copy(update={"cancel_requested": True}))


def test_callouts_name_the_error_and_the_latest_warnings(api: StillhouseClient, seeded: SeededService) -> None:
    view = EventView(warnings=tuple(Warned(code=f"c{i}", message="<b>", step=i) for i in range(5)))
    html = callouts(api.job(seeded.ids.failed), view)
    assert "out_of_memory" in html
    assert "Lower training.batch_size" in html
    assert "c4" in html
    assert "c1" not in html
    assert "5 warnings in all" in html
    assert "<b></b>" not in html
    assert callouts(api.job(seeded.ids.succeeded), EventView()) == ""
