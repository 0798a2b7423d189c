"""Beside the list of models in Compare: a checkpoint of a job joins the list.

Knows the controls. Does not know how a checkpoint is asked: it is one more id in the list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr

from app.core.compare_schemas import MAX_MODELS
from app.core.schemas import CheckpointOut
from ui.client import ApiProblem, StillhouseClient
from ui.model_names import list_of_models
from ui.page import QUIET, Page, named, raw_html
from ui.views import problems
from ui.views.pieces import callout

HELP = '<p class="sh-note">A job keeps its newest checkpoints and its best one, also while it runs.</p>'
NEED_STEP = callout("error", "Choose a job and a step first.")
ENOUGH = callout("error", f"{MAX_MODELS} models at most: take one out first.")
NONE_KEPT = callout(
    "warning", "This job has no checkpoint now.", "<p>training.checkpoint_every sets how often it keeps one.</p>"
)


def list_jobs(api: StillhouseClient, job_id: str) -> dict[str, Any]:
    """The newest jobs and job `job_id`, which is chosen."""
    try:
        found = list(api.jobs(limit=100).data)
        if job_id and job_id not in {job.id for job in found}:
            found.insert(0, api.job(job_id))
    except ApiProblem as problem:
        return {"banner": problems.banner(problem)}
    choices = [(f"{job.name} · {job.id[-6:]}", job.id) for job in found]
    chosen = job_id or next((job.id for job in found), None)
    return {"job": gr.update(choices=choices, value=chosen)} | list_steps(api, chosen)


def list_steps(api: StillhouseClient, job_id: str | None) -> dict[str, Any]:
    """The steps that can be asked, newest first; the best one is chosen, else the newest."""
    if not job_id:
        return {"step": gr.update(choices=[], value=None), "note": HELP}
    try:
        found = [one for one in api.checkpoints(job_id) if one.model_id]
    except ApiProblem as problem:
        return {"step": gr.update(choices=[], value=None), "banner": problems.banner(problem)}
    chosen = next((one for one in found if one.best), found[0]) if found else None
    choices = [(_label(one), one.model_id) for one in found]
    step = gr.update(choices=choices, value=chosen.model_id if chosen else None)
    return {"step": step, "note": HELP if found else NONE_KEPT}


def _label(checkpoint: CheckpointOut) -> str:
    return f"{checkpoint.step:,}" + (" · the best" if checkpoint.best else "")


def add(api: StillhouseClient, chosen: Sequence[str], pane: str | None) -> dict[str, Any]:
    """The list of models with the checkpoint in it and chosen."""
    if not pane:
        return {"note": NEED_STEP}
    if pane not in chosen and len(chosen) >= MAX_MODELS:
        return {"note": ENOUGH}
    now = [*chosen, pane] if pane not in chosen else list(chosen)
    try:
        return {"models": gr.update(choices=list_of_models(api.models(), now), value=now), "note": HELP}
    except ApiProblem as problem:
        return {"banner": problems.banner(problem)}


def build(page: Page, *, models: gr.Dropdown) -> None:
    """An accordion; what is added is chosen in `models`."""
    parts: dict[str, Any] = {"banner": page.banner, "models": models}
    with gr.Accordion("Add a checkpoint of a job", open=False, elem_id="checkpoint-fold") as fold:
        with gr.Row():
            parts["job"] = gr.Dropdown([], label="Job", elem_id="checkpoint-job", min_width=160)
            parts["step"] = gr.Dropdown([], label="After step", elem_id="checkpoint-step", min_width=160)
        go = gr.Button("Add to the models", size="sm", elem_id="checkpoint-add", min_width=120)
        parts["note"] = raw_html(HELP, elem_id="checkpoint-note")
    outputs = list(parts.values())

    def opened(job_id: str) -> dict[Any, Any]:
        return named(parts, list_jobs(page.api, job_id))

    fold.expand(opened, page.job_id, outputs, **QUIET)
    parts["job"].input(lambda one: named(parts, list_steps(page.api, one)), parts["job"], outputs, **QUIET)
    go.click(lambda ids, pane: named(parts, add(page.api, ids, pane)), [models, parts["step"]], outputs, **QUIET)
