"""What every tab is given. Knows names only; layout.py fills it, and each tab's `build(page)` uses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gradio as gr

from ui.client import StillhouseClient

# For events that a reader did not ask for, or whose answer is near at once: no spinner, no queue, no public endpoint.
QUIET: dict[str, Any] = {"show_progress": "hidden", "queue": False, "api_visibility": "private"}


@dataclass(frozen=True)
class Page:
    """What a tab's `build(page)` may use; `tab` is its own.

    `job_id` and `comparison_id` are hidden text boxes, mirrored in the address: the page's whole state. `draft` carries
    a job's JSON to the New job form, which takes it and empties the box; `chosen_models` carries ids, with commas, to
    the list of Compare in the same way.
    """

    api: StillhouseClient
    blocks: gr.Blocks
    tabs: gr.Tabs
    tab: gr.Tab
    banner: gr.HTML
    job_id: gr.Textbox
    comparison_id: gr.Textbox
    draft: gr.Textbox
    chosen_models: gr.Textbox


def is_open_at(request: gr.Request, tab: str) -> bool:
    """Whether the address opens this tab: what only it shows need not be read before."""
    return str(dict(request.query_params).get("tab", "")) == tab


def raw_html(value: str, *, elem_id: str | None = None, js_on_load: str | None = None) -> gr.HTML:
    """HTML of our own making (ui/views escapes what comes from outside), styled by style.css alone."""
    return gr.HTML(value, elem_id=elem_id, apply_default_css=False, js_on_load=js_on_load)


def live_html(value: str, *, elem_id: str, js_on_load: str = "") -> gr.HTML:
    """HTML of our own making that changes while it is read: focus, scrolling and open details stay (live.js)."""
    return gr.HTML(
        value,
        elem_id=elem_id,
        apply_default_css=False,
        html_template='<div class="sh-live"></div>',
        js_on_load=f"stillhouse.live(element, props, watch);{js_on_load}",
    )


def named(parts: Mapping[str, Any], values: Mapping[str, Any]) -> dict[Any, Any]:
    """Values by part name as Gradio wants them: by component. Parts without a value keep theirs."""
    # Gradio reads an empty dictionary as one value.
    return {parts[name]: value for name, value in values.items()} or {next(iter(parts.values())): gr.skip()}
