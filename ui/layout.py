"""The page around the tabs: head, banner and address bar.

Knows which values live in the address (`?job=…&tab=…&cmp=…`), so that a refresh, a link or a second browser shows the
same. Does not know what is inside a tab: the table in tabs/table.py lists them.
"""

from __future__ import annotations

from typing import Any

import gradio as gr

from ui.client import StillhouseClient
from ui.icons import MARK
from ui.page import QUIET, Page, raw_html
from ui.tabs.table import TABS

HEADER = f"""<header class="sh-top"><h1><a class="sh-brand" href="?">{MARK}<span>Stillhouse</span></a></h1>
<p>Distill large language models, and see what the student learned.</p>
<button type="button" class="sh-theme" onclick="stillhouse.toggleTheme()" aria-label="Switch between light and dark">
<span aria-hidden="true">◐</span></button></header>"""


def build_ui(api: StillhouseClient) -> gr.Blocks:
    """The whole page, not yet launched. Builds without an API: everything is read when a browser opens it."""
    # An uploaded file is the API's as soon as it is sent on: Gradio's own copy lives for a day.
    with gr.Blocks(title="Stillhouse", analytics_enabled=False, fill_width=True, delete_cache=(3600, 86400)) as blocks:
        raw_html(HEADER, elem_id="top")
        banner = raw_html("", elem_id="banner")
        job_id = gr.Textbox(visible="hidden", elem_id="job-id", label="Job in the address", container=False)
        comparison_id = gr.Textbox(
            visible="hidden", elem_id="comparison-id", label="Comparison in the address", container=False
        )
        draft = gr.Textbox(visible="hidden", elem_id="draft", label="Job for the form", container=False)
        chosen = gr.Textbox(visible="hidden", elem_id="chosen-models", label="Models to compare", container=False)
        with gr.Tabs(elem_id="tabs") as tabs:
            for spec in TABS:
                with gr.Tab(spec.label, id=spec.id, elem_id=f"tab-{spec.id}") as tab:
                    raw_html(f'<h2 class="sh-hidden">{spec.label}</h2>')  # for screen readers: the tab's own heading
                    spec.build(Page(api, blocks, tabs, tab, banner, job_id, comparison_id, draft, chosen))
                tab.select(None, js=f"() => stillhouse.remember('tab', '{spec.id}')", show_progress="hidden")
        for box, name in ((job_id, "job"), (comparison_id, "cmp")):
            box.change(None, box, None, js=f"(value) => stillhouse.remember('{name}', value)", show_progress="hidden")
        opened = blocks.load(from_address, None, [tabs, job_id, comparison_id], **QUIET)
        opened.then(None, js="() => stillhouse.readAddress()", show_progress="hidden")
    return blocks


def from_address(request: gr.Request) -> tuple[Any, str, str]:
    """The tab, job and comparison that the address names; an unknown tab leaves the first one open."""
    query = dict(request.query_params)
    tab = query.get("tab", "")
    known = tab in {spec.id for spec in TABS}
    return gr.Tabs(selected=tab) if known else gr.skip(), query.get("job", ""), query.get("cmp", "")
