"""At the foot of Compare: earlier comparisons, and what blind votes say about each pair.

Knows when they are read: when the tab opens and when a comparison ends. Does not know HTML (views/panes, views/votes).
"""

from __future__ import annotations

from typing import Any

import gradio as gr

from ui.client import ApiProblem, StillhouseClient
from ui.page import QUIET, Page, is_open_at, live_html, named
from ui.views import panes, problems, votes


def read(api: StillhouseClient, comparison_id: str) -> dict[str, Any]:
    try:
        models = {model.id: model for model in api.models(limit=1000)}
        page, counted = api.comparisons(), api.votes()
    except ApiProblem as problem:
        return {"banner": problems.banner(problem)}
    return {
        "history": panes.history(page, models, chosen=comparison_id),
        "votes": votes.summary(counted, models),
    }


def build(page: Page, *, ended: gr.Textbox) -> None:
    parts: dict[str, Any] = {"banner": page.banner}
    with gr.Accordion("Blind votes by pair", open=False, elem_id="votes-fold", elem_classes="sh-fold"):
        parts["votes"] = live_html(votes.EMPTY, elem_id="votes")
    with gr.Accordion("Earlier comparisons", open=False, elem_id="history-fold", elem_classes="sh-fold"):
        parts["history"] = live_html("", elem_id="history")

    def again(comparison_id: str) -> dict[Any, Any]:
        return named(parts, read(page.api, comparison_id))

    outputs = list(parts.values())
    gr.on([page.tab.select, ended.change], again, page.comparison_id, outputs, **QUIET)

    def opened(request: gr.Request) -> dict[Any, Any]:
        chosen = str(dict(request.query_params).get("cmp", ""))
        return again(chosen) if is_open_at(request, "compare") else named(parts, {})

    page.blocks.load(opened, None, outputs, **QUIET)
