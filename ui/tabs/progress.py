"""The Progress tab: the jobs, and everything about the one whose id is in the address.

Knows how the pieces are laid out and when they are read again. Does not know HTML (views/) or figures (plots.py). Each
tick reads the API anew from the job's id alone; what a browser session keeps is only a cache of the events seen so far.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import gradio as gr

from app.core.schemas import JobOut, MetricsOut
from app.core.schemas import Page as PageOf
from ui.client import ApiProblem, StillhouseClient
from ui.event_view import EventView, fold
from ui.job_form import dump
from ui.page import QUIET, Page, named, raw_html
from ui.plots import chart_grid, charts_value
from ui.views import jobs as jobs_view
from ui.views import problems, samples

FAST_S = 2.0
SLOW_S = 8.0
MAX_POINTS = 400
EVENTS_PER_PAGE = 500
# A tick stays short: a page that opens on a long run catches up over a few ticks.
EVENT_PAGES_PER_TICK = 4
ASK_CANCEL = (
    '<p class="sh-ask"><b>Stop this job?</b> It ends at the next step; what it has learned so far is not kept.</p>'
)
ROW_CLICK = """
element.addEventListener('click', (event) => {
  const row = event.target.closest('tr[data-job]');
  if (!row || event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
  event.preventDefault();
  trigger('select', {job: row.dataset.job});
});
"""


@dataclass(frozen=True)
class Snapshot:
    """One reading of the API for job `job_id`; `problem` is set where reading stopped."""

    jobs: PageOf[JobOut] | None = None
    job: JobOut | None = None
    metrics: MetricsOut = field(default_factory=lambda: MetricsOut(series=()))
    view: EventView = field(default_factory=EventView)
    problem: ApiProblem | None = None


def read(api: StillhouseClient, job_id: str, view: EventView) -> Snapshot:
    """Everything the tab shows. Never raises: what was read before a problem is still shown."""
    snapshot = Snapshot(view=view if view.job_id == job_id else EventView(job_id=job_id))
    try:
        snapshot = replace(snapshot, jobs=api.jobs())
        if job_id:
            snapshot = replace(snapshot, job=api.job(job_id), metrics=api.metrics(job_id, max_points=MAX_POINTS))
            snapshot = replace(snapshot, view=_read_events(api, snapshot.view))
    except ApiProblem as problem:
        return replace(snapshot, problem=problem)
    return snapshot


def _read_events(api: StillhouseClient, view: EventView) -> EventView:
    for _ in range(EVENT_PAGES_PER_TICK):
        page = api.events(view.job_id, after=view.cursor, limit=EVENTS_PER_PAGE)
        view = fold(view, page.data)
        if not page.has_more:
            break
    return view


def show(snapshot: Snapshot, *, now: datetime) -> dict[str, Any]:
    """Values of the tab's parts by name; a part that is left out keeps what it shows."""
    job, view, problem = snapshot.job, snapshot.view, snapshot.problem
    shown: dict[str, Any] = {"banner": problems.banner(problem), "view": view}
    if snapshot.jobs is not None:
        shown["table"] = jobs_view.jobs_table(snapshot.jobs, chosen=view.job_id, now=now)
    if job is None:
        gone = problem if problem and problem.status == 404 else None
        if gone or not view.job_id:
            empty = problems.problem_list(gone, title="This job cannot be shown.") if gone else jobs_view.NO_CHOICE
            shown |= {"head": empty, "notes": "", "fast": gr.Timer(active=False)}
            shown |= {"detail": gr.Column(visible=False), "cancel": gr.Column(visible=False)}
        else:
            # Asked again until it is there; a page that was open already keeps what it shows.
            shown |= {"fast": gr.Timer(active=True)} | ({} if view.cursor else {"head": jobs_view.NOT_READ})
        return shown
    running = not jobs_view.is_terminal(job)
    return {
        **shown,
        "head": jobs_view.job_head(job, view, snapshot.metrics, now=now),
        "notes": jobs_view.callouts(job, view),
        "cancel": gr.Column(visible=running and not job.cancel_requested),
        "detail": gr.Column(visible=True),
        "charts": charts_value(snapshot.metrics, revision=job.id),
        "answers": samples.answers(view.samples),
        "corrections": samples.corrections(view.corrections),
        "log": samples.event_log(view.lines),
        "description": dump({"name": job.name, "config": job.config}),
        "fast": gr.Timer(active=running),
    }


def show_list(api: StillhouseClient, job_id: str, *, now: datetime) -> dict[str, Any]:
    """The slow tick: the list and the banner; it wakes the fast one when the chosen job runs again."""
    try:
        jobs = api.jobs()
    except ApiProblem as problem:
        return {"banner": problems.banner(problem)}
    shown: dict[str, Any] = {"banner": "", "table": jobs_view.jobs_table(jobs, chosen=job_id, now=now)}
    if any(job.id == job_id and not jobs_view.is_terminal(job) for job in jobs.data):
        shown["fast"] = gr.Timer(active=True)
    return shown


def ask_cancel(api: StillhouseClient, job_id: str) -> str:
    """Asks the API to stop the job; answers what to tell the reader when it cannot."""
    try:
        api.cancel(job_id)
    except ApiProblem as problem:
        return problems.problem_list(problem, title="The job was not stopped.")
    return ""


# --- layout and wiring --------------------------------------------------------------------------------------


def build(page: Page) -> None:
    """Lays the tab out inside an open gr.Tab and wires its timers."""
    parts: dict[str, Any] = {"banner": page.banner}
    with gr.Column(elem_classes="sh-tab"):
        parts["table"] = raw_html("", elem_id="jobs", js_on_load=ROW_CLICK)
        with gr.Column(elem_id="job-top"):
            parts["head"] = raw_html(jobs_view.NO_CHOICE, elem_id="job-head")
            with gr.Column(visible=False, elem_id="job-cancel") as parts["cancel"]:
                yes, cancel_note = _build_cancel()
        parts["notes"] = raw_html("", elem_id="job-notes")
        with gr.Column(visible=False, elem_id="job-detail") as parts["detail"]:
            _build_detail(parts)
    parts |= {"fast": gr.Timer(FAST_S, active=False), "view": gr.State(EventView())}
    slow = gr.Timer(SLOW_S)

    def refresh(job_id: str, view: EventView) -> dict[Any, Any]:
        return named(parts, show(read(page.api, job_id, view), now=datetime.now(UTC)))

    def refresh_list(job_id: str) -> dict[Any, Any]:
        return named(parts, show_list(page.api, job_id, now=datetime.now(UTC)))

    inputs, outputs = [page.job_id, parts["view"]], list(parts.values())
    gr.on([page.job_id.change, parts["fast"].tick], refresh, inputs, outputs, **QUIET)
    gr.on([page.blocks.load, slow.tick], refresh_list, page.job_id, outputs, **QUIET)
    parts["table"].select(chosen_row, None, page.job_id, **QUIET)
    yes.click(lambda job_id: ask_cancel(page.api, job_id), page.job_id, cancel_note, **QUIET).then(
        refresh, inputs, outputs, **QUIET
    )


def chosen_row(event: gr.EventData) -> str:
    return str(event.job)


def _build_cancel() -> tuple[gr.Button, gr.HTML]:
    """The button that asks, the row that confirms; answers the confirming button and where a refusal is shown."""
    ask = gr.Button("Cancel job", size="sm", variant="secondary", elem_id="cancel-ask")
    with gr.Row(visible=False, elem_classes="sh-confirm") as confirm:
        raw_html(ASK_CANCEL)
        yes = gr.Button("Yes, stop it", size="sm", variant="stop", elem_id="cancel-yes")
        keep = gr.Button("Keep it running", size="sm", elem_id="cancel-keep")
    note = raw_html("")
    both = [ask, confirm]
    ask.click(lambda: (gr.Button(visible=False), gr.Row(visible=True)), None, both, **QUIET)
    gr.on([yes.click, keep.click], lambda: (gr.Button(visible=True), gr.Row(visible=False)), None, both, **QUIET)
    return yes, note


def _build_detail(parts: dict[str, Any]) -> None:
    with gr.Tabs(elem_id="detail-tabs"):
        with gr.Tab("Curves"):
            parts["charts"] = chart_grid(elem_id="charts")
        with gr.Tab("Samples"), gr.Row(elem_classes="sh-two"):
            with gr.Column(min_width=320):
                raw_html("<h3>Answers to held-out prompts</h3>")
                parts["answers"] = raw_html("", elem_id="answers")
            with gr.Column(min_width=320):
                raw_html("<h3>Corrections by SCRG</h3>")
                parts["corrections"] = raw_html("", elem_id="corrections")
        with gr.Tab("Events"):
            parts["log"] = raw_html("", elem_id="event-log")
        with gr.Tab("Description"):
            parts["description"] = gr.Code(language="json", interactive=False, label="The job as it was accepted")
