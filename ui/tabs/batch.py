"""Below the panes: a whole data set through the chosen models, measured row by row.

Knows the controls and when to poll. Does not know HTML (views/batches.py). The batch's id is in the address
(`?batch=…`), so a refresh or a link shows the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr

from app.core.compare_schemas import BatchOut
from ui.client import ApiProblem, StillhouseClient
from ui.page import QUIET, Page, is_open_at, live_html, named, raw_html
from ui.views import batches, problems
from ui.views.pieces import callout

POLL_S = 2.0
SHOWN_ROWS = 100
SORTS = [("Data order", "row"), ("Student worst: KL", "kl"), ("Student worst: ROUGE-L", "rouge_l")]
NEED_DATA = callout("error", "Choose a data set first.")
NEED_MODELS = callout("error", "Choose models above first.")
ENDED = ("succeeded", "cancelled")


def datasets(api: StillhouseClient, chosen: str | None) -> dict[str, Any]:
    """The data sets there are; a choice that is still there stays, else the newest is taken."""
    try:
        found = api.datasets()
        earlier = api.batches()
    except ApiProblem as problem:
        return {"banner": problems.banner(problem)}
    choices = [(f"{one.name} ({one.rows:,} rows, {one.id[-6:]})", one.id) for one in found]
    there = [value for _, value in choices]
    kept = chosen if chosen in there else next(iter(there), None)
    return {"dataset": gr.update(choices=choices, value=kept), "earlier": batches.listed(earlier, chosen="")}


def start(
    api: StillhouseClient, dataset_id: str | None, model_ids: Sequence[str], limit: float, tokens: float, *, judge: bool
) -> dict[str, Any]:
    """Queues the batch; from then on its id in the address drives this part of the page."""
    if not dataset_id:
        return {"note": NEED_DATA}
    if not model_ids:
        return {"note": NEED_MODELS}
    request = {
        "dataset_id": dataset_id,
        "model_ids": list(model_ids),
        "limit": int(limit),
        "max_new_tokens": int(tokens),
        "judge": judge,
    }
    try:
        batch = api.start_batch(request)
    except ApiProblem as problem:
        refused = problems.problem_list(problem, title="The batch was not accepted.")
        return {"note": refused, "banner": problems.banner(problem)}
    return {"note": "", "id": batch.id, "timer": gr.Timer(active=True)}


def cancel(api: StillhouseClient, batch_id: str) -> dict[str, Any]:
    try:
        api.cancel_batch(batch_id)
    except ApiProblem as problem:
        return {"note": problems.problem_list(problem, title="The batch could not be cancelled.")}
    return {"note": ""}


def show(api: StillhouseClient, batch_id: str, sort: str) -> dict[str, Any]:
    """The batch as it stands; the timer goes on until it has ended, and while the API does not answer."""
    if not batch_id:
        return {"head": batches.EMPTY, "rows": "", "timer": gr.Timer(active=False), "stop": gr.Button(visible=False)}
    try:
        batch = api.batch(batch_id)
        page = api.batch_rows(batch_id, sort=sort, limit=1000)
        models = {model.id: model for model in api.models(limit=1000)}
    except ApiProblem as problem:
        if problem.status == 404:
            listed = problems.problem_list(problem, title="This batch cannot be shown.")
            return {"head": listed, "rows": "", "timer": gr.Timer(active=False), "stop": gr.Button(visible=False)}
        return {"banner": problems.banner(problem)}
    shown = page.model_copy(update={"data": page.data[:SHOWN_ROWS], "has_more": len(page.data) > SHOWN_ROWS})
    return {
        "head": batches.head(batch, models, page.data),
        "rows": batches.table(shown, models),
        "banner": "",
        **_running(batch),
    }


def _running(batch: BatchOut) -> dict[str, Any]:
    runs = batch.status not in ENDED
    return {"timer": gr.Timer(active=runs), "stop": gr.Button(visible=runs)}


# --- layout and wiring --------------------------------------------------------------------------------------


def build(page: Page, *, models: gr.Dropdown) -> None:
    """An accordion; the batch asks the models that are chosen above."""
    parts: dict[str, Any] = {"banner": page.banner}
    with gr.Accordion("A data set through the models", open=False, elem_id="batch", elem_classes="sh-fold") as fold:
        with gr.Row(equal_height=True):
            parts["dataset"] = gr.Dropdown([], label="Data set", elem_id="batch-dataset", min_width=240, scale=3)
            limit = gr.Number(50, label="Rows, at most", minimum=1, maximum=1000, elem_id="batch-limit", min_width=110)
            tokens = gr.Number(128, label="New tokens, at most", minimum=1, elem_id="batch-tokens", min_width=110)
            judge = gr.Checkbox(False, label="Ask the judge", elem_id="batch-judge", min_width=140)
        with gr.Row(elem_classes="sh-go"):
            go = gr.Button("Run the batch", variant="primary", elem_id="batch-go", min_width=130)
            parts["stop"] = gr.Button(
                "Stop the batch", variant="stop", visible=False, elem_id="batch-stop", min_width=130
            )
        parts["note"] = raw_html("", elem_id="batch-note")
        parts["head"] = live_html(batches.EMPTY, elem_id="batch-head")
        sort = gr.Dropdown(SORTS, value="row", label="Order", elem_id="batch-sort", min_width=200)
        parts["rows"] = live_html("", elem_id="batch-rows")
        parts["earlier"] = live_html("", elem_id="batch-earlier")
    parts["id"] = gr.Textbox(visible="hidden", elem_id="batch-id", label="Batch in the address", container=False)
    parts["timer"] = gr.Timer(POLL_S, active=False)
    parts["fold"] = fold
    _wire(page, parts, models, (limit, tokens, judge), go, sort)


def _wire(
    page: Page, parts: dict[str, Any], models: gr.Dropdown, settings: tuple[Any, ...], go: gr.Button, sort: gr.Dropdown
) -> None:
    outputs = list(parts.values())

    def pressed(
        dataset_id: str | None, model_ids: list[str], limit: float, tokens: float, judge: bool
    ) -> dict[Any, Any]:
        return named(parts, start(page.api, dataset_id, model_ids, limit, tokens, judge=judge))

    def again(batch_id: str, sort: str) -> dict[Any, Any]:
        return named(parts, show(page.api, batch_id, sort))

    def stopped(batch_id: str, sort: str) -> dict[Any, Any]:
        return named(parts, cancel(page.api, batch_id) | show(page.api, batch_id, sort))

    def opened(request: gr.Request) -> dict[Any, Any]:
        batch_id = str(dict(request.query_params).get("batch", ""))
        values = {"id": batch_id} | (datasets(page.api, None) if is_open_at(request, "compare") else {})
        return named(parts, values | ({"fold": gr.Accordion(open=True)} if batch_id else {}))

    looked = [parts["id"], sort]
    go.click(pressed, [parts["dataset"], models, *settings], outputs, **QUIET)
    parts["stop"].click(stopped, looked, outputs, **QUIET)
    gr.on([parts["id"].change, parts["timer"].tick, sort.change], again, looked, outputs, **QUIET)
    # Another tab may send a reader here without a `select`.
    seen = [page.tab.select, parts["fold"].expand]
    gr.on(seen, lambda one: named(parts, datasets(page.api, one)), parts["dataset"], outputs, **QUIET)
    page.blocks.load(opened, None, outputs, **QUIET)
    remember = "(value) => stillhouse.remember('batch', value)"
    parts["id"].change(None, parts["id"], None, js=remember, show_progress="hidden")
