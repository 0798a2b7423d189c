"""The Progress tab: everything about the job whose id is in the address, and other jobs' curves over its own.

Knows how the pieces are laid out and when they are read again; progress_data.py reads. Does not know HTML (views/) or
figures (plots.py). Each tick reads the API anew from the job's id alone; what a browser session keeps is only a cache
of the events seen so far. The overlaid jobs are in the address too (`?with=job_…,job_…`).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import gradio as gr

from ui.client import ApiProblem, StillhouseClient
from ui.event_view import EventView
from ui.job_form import dump
from ui.page import QUIET, Page, live_html, named, raw_html
from ui.plots import Run, chart_grid, charts_value
from ui.tabs.job_actions import act, pressed
from ui.tabs.progress_data import Snapshot, found, read
from ui.views import jobs as jobs_view
from ui.views import problems, samples
from ui.views.config_diff import config_diff

FAST_S = 2.0
SLOW_S = 8.0
MAX_OVERLAYS = 3
GONE = "It may have been deleted. Choose another under <a href='?tab=jobs'>Jobs</a>."


def show(snapshot: Snapshot, *, now: datetime) -> dict[str, Any]:
    """Values of the tab's parts by name; a part that is left out keeps what it shows."""
    job, view, problem = snapshot.job, snapshot.view, snapshot.problem
    shown: dict[str, Any] = {"banner": problems.banner(problem), "view": view}
    if job is None:
        gone = problem if problem and problem.status == 404 else None
        if gone or not view.job_id:
            title = "This job cannot be shown."
            empty = problems.problem_list(gone, title=title, cure=GONE) if gone else jobs_view.NO_CHOICE
            shown |= {"head": empty, "notes": "", "fast": gr.Timer(active=False), "detail": gr.Column(visible=False)}
        else:
            # Asked again until it is there; a page that was open already keeps what it shows.
            shown |= {"fast": gr.Timer(active=True)} | ({} if view.cursor else {"head": jobs_view.NOT_READ})
        return shown
    any_curves = bool(snapshot.metrics.series)
    runs = [Run(one.id, one.name, metrics) for one, metrics in ((job, snapshot.metrics), *snapshot.overlays)]
    return {
        **shown,
        "head": jobs_view.job_head(job, view, snapshot.metrics, now=now),
        "notes": jobs_view.callouts(job, view),
        "detail": gr.Column(visible=True),
        "charts": charts_value(runs, error_bins=view.error_bins),
        "diff": config_diff([job, *(one for one, _ in snapshot.overlays)])
        + ("" if any_curves else jobs_view.no_curves(job)),
        "answers": samples.answers(view.samples),
        "corrections": samples.corrections(view.corrections),
        "log": samples.event_log(view.lines),
        "description": dump({"name": job.name, "config": job.config}),
        # Of a job that has ended, too, until its last event was read.
        "fast": gr.Timer(active=snapshot.is_behind or not jobs_view.is_terminal(job)),
    }


def look(api: StillhouseClient, job_id: str) -> dict[str, Any]:
    """The slow tick: the banner; it wakes the fast one when the chosen job runs again (after a retry, for one)."""
    if not job_id:
        return {}  # nothing is asked, so nothing is known of the service either
    try:
        job = api.job(job_id)
    except ApiProblem as problem:
        return {"banner": problems.banner(problem)}
    return {"banner": ""} | ({} if jobs_view.is_terminal(job) else {"fast": gr.Timer(active=True)})


def overlay_choices(api: StillhouseClient, chosen: str, overlays: list[str], *, select: bool = False) -> dict[str, Any]:
    """The newest jobs to lay over the chosen one, and those that are laid over it already, however old."""
    try:
        known = {job.id: job for job in api.jobs().data}
        known |= {job.id: job for job_id in overlays if job_id not in known for job in found(api, job_id)}
    except ApiProblem as problem:
        return {"banner": problems.banner(problem)}
    choices = [(f"{job.name} · {job.status} · {job.id[-6:]}", job.id) for job in known.values() if job.id != chosen]
    known_overlays = [job_id for job_id in overlays if job_id in known]
    return {"overlays": gr.update(choices=choices, value=known_overlays) if select else gr.update(choices=choices)}


# --- layout and wiring --------------------------------------------------------------------------------------


def build(page: Page) -> None:
    """Lays the tab out inside an open gr.Tab and wires its timers."""
    parts: dict[str, Any] = {"banner": page.banner, "job_id": page.job_id, "tabs": page.tabs, "draft": page.draft}
    with gr.Column(elem_classes="sh-tab"):
        click = "stillhouse.jobButtons(element, trigger);"
        parts["head"] = live_html(jobs_view.NO_CHOICE, elem_id="job-head", js_on_load=click)
        parts["note"] = raw_html("", elem_id="job-note")
        parts["notes"] = live_html("", elem_id="job-notes")
        with gr.Column(visible=False, elem_id="job-detail") as parts["detail"]:
            _build_detail(parts)
    parts |= {"fast": gr.Timer(FAST_S, active=False), "view": gr.State(EventView())}
    _wire(page, parts)


def _wire(page: Page, parts: dict[str, Any]) -> None:
    inputs, outputs = [page.job_id, parts["view"], parts["overlays"]], list(parts.values())

    def current(job_id: str, view: EventView, overlays: list[str] | None) -> dict[str, Any]:
        return show(read(page.api, job_id, view, overlays or []), now=datetime.now(UTC))

    def refresh(job_id: str, view: EventView, overlays: list[str] | None) -> dict[Any, Any]:
        return named(parts, current(job_id, view, overlays))

    def opened(request: gr.Request) -> dict[Any, Any]:
        query = dict(request.query_params)
        overlays = [one for one in query.get("with", "").split(",") if one][:MAX_OVERLAYS]
        return named(parts, overlay_choices(page.api, query.get("job", ""), overlays, select=True))

    def offered(job_id: str, overlays: list[str]) -> dict[Any, Any]:
        return named(parts, overlay_choices(page.api, job_id, overlays or []))

    def on_button(event: gr.EventData, job_id: str, view: EventView, overlays: list[str] | None) -> dict[Any, Any]:
        done = act(page.api, *pressed(event))
        if done.deleted:
            return named(parts, {"job_id": "", "tabs": gr.Tabs(selected="jobs")})
        follows: dict[str, Any] = {"note": done.note}
        if done.draft:
            follows |= {"draft": done.draft, "tabs": gr.Tabs(selected="submit")}
        return named(parts, current(job_id, view, overlays) | follows)

    asked = [page.job_id.change, parts["fast"].tick, parts["overlays"].change]
    gr.on(asked, refresh, inputs, outputs, **QUIET)
    slow = gr.Timer(SLOW_S)
    gr.on([page.blocks.load, slow.tick], lambda one: named(parts, look(page.api, one)), page.job_id, outputs, **QUIET)
    page.blocks.load(opened, None, outputs, **QUIET)
    gr.on([page.tab.select, page.job_id.change], offered, [page.job_id, parts["overlays"]], outputs, **QUIET)
    parts["head"].select(on_button, inputs, outputs, **QUIET)
    remember = "(value) => stillhouse.remember('with', (value || []).join(','))"
    parts["overlays"].input(None, parts["overlays"], None, js=remember, show_progress="hidden")


def _build_detail(parts: dict[str, Any]) -> None:
    with gr.Tabs(elem_id="detail-tabs"):
        with gr.Tab("Curves"):
            _build_curves(parts)
        with gr.Tab("Samples"), gr.Row(elem_classes="sh-two"):
            with gr.Column(min_width=320):
                raw_html("<h3>Answers to held-out prompts</h3>")
                parts["answers"] = live_html("", elem_id="answers")
            with gr.Column(min_width=320):
                raw_html("<h3>Corrections by SCRG</h3>")
                parts["corrections"] = live_html("", elem_id="corrections")
        with gr.Tab("Events"):
            parts["log"] = live_html("", elem_id="event-log")
        with gr.Tab("Description"):
            parts["description"] = gr.Code(language="json", interactive=False, label="The job as it was accepted")


def _build_curves(parts: dict[str, Any]) -> None:
    with gr.Row(elem_classes="sh-card sh-curve-bar", equal_height=False):
        parts["overlays"] = gr.Dropdown(
            [],
            multiselect=True,
            max_choices=MAX_OVERLAYS,
            label="Lay other jobs over this one",
            info="Up to three; what their descriptions differ in is listed below.",
            elem_id="overlays",
            scale=3,
        )
        smoothing = gr.Slider(
            0,
            0.98,
            0,
            step=0.02,
            label="Smoothing",
            info="Running mean of noisy curves; 0 shows the values as they are.",
            elem_id="smoothing",
            scale=2,
        )
        smoothing.change(None, smoothing, None, js="(weight) => stillhouse.smooth(weight)", show_progress="hidden")
    parts["diff"] = live_html("", elem_id="config-diff")
    parts["charts"] = chart_grid(elem_id="charts")
