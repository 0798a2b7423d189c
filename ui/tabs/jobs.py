"""The Jobs tab: every job, found by status or by words, page by page, with what can be done to each.

Knows when the list is read (only while it is seen) and what is asked for. Does not know HTML (views/jobs.py). The
filters are in the address (`?status=…&q=…`), so a refresh or a link shows the same list.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, get_args

import gradio as gr

from app.core.schemas import JobStatus
from ui.client import ApiProblem, StillhouseClient
from ui.page import QUIET, Page, is_open_at, live_html, named, raw_html
from ui.tabs.job_actions import act, pressed
from ui.views import jobs as jobs_view
from ui.views import problems

POLL_S = 5.0
PAGE_SIZE = 50
STATUSES = get_args(JobStatus)
CHOICES = [("Any status", ""), *((status.capitalize(), status) for status in STATUSES)]


def show(
    api: StillhouseClient, *, chosen: str, status: str, q: str, trail: Sequence[str], now: datetime
) -> dict[str, Any]:
    """Values of the tab's parts. `trail` holds the last job of every page before this one."""
    try:
        page = api.jobs(limit=PAGE_SIZE, status=status, q=q.strip(), after=trail[-1] if trail else "")
    except ApiProblem as problem:
        refused = problems.problem_list(problem, title="The list cannot be shown.") if problem.status == 422 else ""
        return {"banner": problems.banner(problem), "note": refused}
    filtered = bool(status or q.strip() or trail)
    return {
        "banner": "",
        "table": jobs_view.jobs_table(page, chosen=chosen, filtered=filtered, now=now),
        "where": jobs_view.place(len(page.data), before=len(trail) * PAGE_SIZE, has_more=page.has_more),
        "newer": gr.Button(interactive=bool(trail)),
        "older": gr.Button(interactive=page.has_more),
        "pager": gr.Row(visible=bool(trail) or page.has_more),
        "last": page.data[-1].id if page.data else "",
    }


def from_address(request: gr.Request) -> tuple[str, str]:
    """The filters that the address names; an unknown status is none."""
    query = dict(request.query_params)
    status = query.get("status", "")
    return status if status in STATUSES else "", query.get("q", "")


# --- layout and wiring --------------------------------------------------------------------------------------


def build(page: Page) -> None:
    """Lays the tab out inside an open gr.Tab and wires it."""
    parts: dict[str, Any] = {"banner": page.banner, "job_id": page.job_id, "tabs": page.tabs, "draft": page.draft}
    with gr.Column(elem_classes="sh-tab"):
        with gr.Row(elem_classes="sh-card sh-filter", equal_height=True):
            q = gr.Textbox(label="Search", placeholder="Part of a name or id", max_lines=1, elem_id="jobs-q", scale=3)
            status = gr.Dropdown(CHOICES, value="", label="Status", elem_id="jobs-status", scale=1, min_width=160)
        parts["note"] = raw_html("", elem_id="jobs-note")
        click = "stillhouse.jobButtons(element, trigger);"
        parts["table"] = live_html(jobs_view.LOADING, elem_id="jobs", js_on_load=click)
        with gr.Row(visible=False, elem_classes="sh-pager", elem_id="jobs-pager") as parts["pager"]:
            parts["newer"] = gr.Button("Newer", size="sm", elem_id="jobs-newer", min_width=90)
            parts["where"] = raw_html("")
            parts["older"] = gr.Button("Older", size="sm", elem_id="jobs-older", min_width=90)
    parts |= {"last": gr.State(""), "trail": gr.State([])}
    _wire(page, parts, status, q)


def _wire(page: Page, parts: dict[str, Any], status: gr.Dropdown, q: gr.Textbox) -> None:
    inputs, outputs = [page.job_id, status, q, parts["trail"]], list(parts.values())

    def read(chosen: str, status: str, q: str, trail: list[str]) -> dict[str, Any]:
        return show(page.api, chosen=chosen, status=status, q=q, trail=trail, now=datetime.now(UTC))

    def again(chosen: str, status: str, q: str, trail: list[str]) -> dict[Any, Any]:
        return named(parts, read(chosen, status, q, trail))

    def first_page(chosen: str, status: str, q: str) -> dict[Any, Any]:
        return named(parts, read(chosen, status, q, []) | {"trail": []})

    def turned(chosen: str, status: str, q: str, trail: list[str], last: str) -> dict[Any, Any]:
        trail = [*trail, last] if last else trail[:-1]
        return named(parts, read(chosen, status, q, trail) | {"trail": trail})

    def on_button(event: gr.EventData, chosen: str, status: str, q: str, trail: list[str]) -> dict[Any, Any]:
        job_id, action, choice = pressed(event)
        if action == "open":
            return named(parts, {"job_id": job_id, "tabs": gr.Tabs(selected="progress")})
        done = act(page.api, job_id, action, choice)
        follows: dict[str, Any] = {"note": done.note}
        if done.draft:
            follows |= {"draft": done.draft, "tabs": gr.Tabs(selected="submit")}
        if done.deleted and chosen == job_id:
            follows["job_id"] = chosen = ""
        return named(parts, read(chosen, status, q, trail) | follows)

    def opened(request: gr.Request) -> dict[Any, Any]:
        found, words = from_address(request)
        values: dict[str, Any] = {}
        if is_open_at(request, "jobs"):
            values = read(str(dict(request.query_params).get("job", "")), found, words, [])
        return {status: found, q: words} | named(parts, values)

    def if_shown(chosen: str, status: str, q: str, trail: list[str], is_shown: bool) -> dict[Any, Any]:
        # A job that was deleted leaves no job chosen, and the reader here, whatever the page showed when it was asked.
        return again(chosen, status, q, trail) if is_shown or not chosen else named(parts, {})

    latest = {**QUIET, "trigger_mode": "always_last"}
    page.blocks.load(opened, None, [status, q, *outputs], **QUIET)
    # Only the browser knows which tab it shows.
    shown = gr.Checkbox(visible="hidden", label="This tab is shown", container=False)
    asks = "(...given) => [...given.slice(0, -1), stillhouse.shows('jobs')]"
    gr.on([gr.Timer(POLL_S).tick, page.job_id.change], if_shown, [*inputs, shown], outputs, js=asks, **QUIET)
    page.tab.select(again, inputs, outputs, **QUIET)
    # A Textbox's `input` says nothing of a paste or a deletion.
    gr.on([status.change, q.change], first_page, inputs[:3], outputs, **latest)
    for box, name in ((status, "status"), (q, "q")):
        box.change(None, box, None, js=f"(value) => stillhouse.remember('{name}', value)", show_progress="hidden")
    parts["older"].click(turned, [*inputs, parts["last"]], outputs, **QUIET)
    parts["newer"].click(turned, [*inputs, gr.State("")], outputs, **QUIET)
    parts["table"].select(on_button, inputs, outputs, **QUIET)
