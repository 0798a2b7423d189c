"""The Compare tab: one prompt, two to four models, side by side.

Knows the controls and when to poll. Does not know HTML (views/panes.py). The comparison's id is in the address, so its
prompt, settings and answers come back from the API after a refresh or in another browser.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import gradio as gr

from app.core.compare_schemas import ComparisonOut
from app.core.schemas import JobOut, ModelOut
from ui.client import ApiProblem, StillhouseClient
from ui.page import QUIET, Page, named, raw_html
from ui.views import panes, problems
from ui.views.pieces import callout

POLL_S = 1.0
MAX_MODELS = 4
PROMPT = "Explain in two sentences why the sky is blue."
NEED_PROMPT = callout("error", "Write a prompt first.")
NEED_MODELS = callout("error", "Choose two to four models.")
# The controls whose values go into the request, besides prompt and system prompt; integers travel as such.
SETTINGS = {"max_new_tokens": int, "temperature": float, "top_p": float, "seed": int}


def models_of(job: JobOut) -> list[str]:
    """Teacher, untrained student and student of a job, as far as they exist."""
    return [model_id for model_id in (job.teacher_id, job.untrained_id, job.student_id) if model_id]


def model_choices(models: Sequence[ModelOut]) -> list[tuple[str, str]]:
    """Label and id; models of one name are told apart by the end of the id."""
    labels = Counter(panes.model_label(model) for model in models)
    return [
        (label if labels[label] == 1 else f"{label} · {model.id[-6:]}", model.id)
        for model in models
        for label in [panes.model_label(model)]
    ]


def request_of(prompt: str, system: str, model_ids: Sequence[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The body of POST /v1/comparisons; what is wrong with it, the API says."""
    messages = [{"role": "system", "content": system}] if system.strip() else []
    return {
        "model_ids": list(model_ids),
        "messages": [*messages, {"role": "user", "content": prompt}],
        **{name: _number(settings[name], kind) for name, kind in SETTINGS.items()},
    }


def _number(value: Any, kind: type) -> Any:
    return int(value) if kind is int and isinstance(value, float) and value.is_integer() else value


def list_models(api: StillhouseClient, job_id: str, chosen: Sequence[str], *, select: bool) -> dict[str, Any]:
    """The list of models, and which are chosen: with `select` those of job `job_id`.

    Without `select` the reader's choice stays, except that a student that has come out meanwhile joins its job.
    """
    try:
        known = {model.id: model for model in api.models()}
        own = models_of(api.job(job_id)) if job_id else []
    except ApiProblem as problem:
        return {"banner": problems.banner(problem)}
    choices = model_choices(list(known.values()))
    if select or (chosen and list(chosen) == own[:-1]):
        return {"models": gr.update(choices=choices, value=[one for one in own if one in known])}
    return {"models": gr.update(choices=choices)}


def start(
    api: StillhouseClient, prompt: str, system: str, model_ids: Sequence[str], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Asks for a comparison; from then on its id in the address drives the page."""
    if not prompt.strip():
        return {"note": NEED_PROMPT}
    if not 2 <= len(model_ids) <= MAX_MODELS:
        return {"note": NEED_MODELS}
    try:
        comparison = api.compare(request_of(prompt, system, model_ids, settings))
    except ApiProblem as problem:
        return {
            "note": problems.problem_list(problem, title="The comparison was not accepted."),
            "banner": problems.banner(problem),
        }
    return {"note": "", "id": comparison.id, "timer": gr.Timer(active=True)}


def show(api: StillhouseClient, comparison_id: str) -> dict[str, Any]:
    """The panes as they stand; the timer goes on while an answer is due, or while the API does not answer."""
    if not comparison_id:
        return {"panes": panes.EMPTY, "timer": gr.Timer(active=False)}
    try:
        comparison = api.comparison(comparison_id)
        models = {model_id: api.model(model_id) for model_id in comparison.request.model_ids}
    except ApiProblem as problem:
        if problem.status == 404:
            listed = problems.problem_list(problem, title="This comparison cannot be shown.")
            return {"panes": listed, "timer": gr.Timer(active=False)}
        return {"banner": problems.banner(problem)}
    waiting = comparison.status in ("queued", "running")
    return {"panes": panes.panes(comparison, models), "timer": gr.Timer(active=waiting), "banner": ""}


def restore(api: StillhouseClient, comparison_id: str) -> dict[str, Any]:
    """The controls as they were when the comparison in the address was asked for."""
    try:
        comparison = api.comparison(comparison_id)
        models = api.models()
    except ApiProblem as problem:
        return {"banner": problems.banner(problem)}
    return controls_of(comparison) | {
        "models": gr.update(choices=model_choices(models), value=list(comparison.request.model_ids))
    }


def controls_of(comparison: ComparisonOut) -> dict[str, Any]:
    request = comparison.request
    said = {message.role: message.content for message in request.messages}
    values: dict[str, Any] = {name: getattr(request, name) for name in SETTINGS}
    return values | {"prompt": said.get("user", ""), "system": said.get("system", "")}


# --- layout and wiring --------------------------------------------------------------------------------------


def build(page: Page) -> None:
    """Lays the tab out inside an open gr.Tab and wires its timer."""
    parts: dict[str, Any] = {"banner": page.banner, "id": page.comparison_id}
    with gr.Column(elem_classes="sh-tab"):
        with gr.Row(elem_classes="sh-ask-models", equal_height=True):
            _build_controls(parts)
        parts["note"] = raw_html("", elem_id="compare-note")
        parts["panes"] = raw_html(panes.EMPTY, elem_id="panes")
    parts["timer"] = gr.Timer(POLL_S, active=False)
    _wire(page, parts)


def _build_controls(parts: dict[str, Any]) -> None:
    with gr.Column(scale=3, min_width=320, elem_classes="sh-card"):
        parts["prompt"] = gr.Textbox(PROMPT, label="Prompt", lines=5, max_lines=12, elem_id="compare-prompt")
        parts["system"] = gr.Textbox(
            "", label="System prompt (optional)", lines=1, max_lines=6, elem_id="compare-system"
        )
        parts["go"] = gr.Button("Compare", variant="primary", elem_id="compare-go")
    with gr.Column(scale=2, min_width=320, elem_classes="sh-card"):
        parts["models"] = gr.Dropdown(
            [],
            multiselect=True,
            max_choices=MAX_MODELS,
            label="Models",
            info="Two to four; by default those of the job chosen under Progress.",
            elem_id="compare-models",
        )
        with gr.Row():
            parts["max_new_tokens"] = gr.Number(128, label="New tokens, at most", min_width=120)
            parts["seed"] = gr.Number(0, label="Seed", min_width=120)
        with gr.Row():
            parts["temperature"] = gr.Slider(
                0, 2, 0, step=0.05, label="Temperature", info="0 is greedy.", min_width=120
            )
            parts["top_p"] = gr.Slider(0.05, 1, 1, step=0.05, label="Top-p", info="1 cuts nothing.", min_width=120)


def _wire(page: Page, parts: dict[str, Any]) -> None:
    def at(values: Mapping[str, Any]) -> dict[Any, Any]:
        return named(parts, values)

    def pressed(prompt: str, system: str, model_ids: list[str], *values: Any) -> dict[Any, Any]:
        return at(start(page.api, prompt, system, model_ids, dict(zip(SETTINGS, values, strict=True))))

    def opened(request: gr.Request) -> dict[Any, Any]:
        query = dict(request.query_params)
        if query.get("cmp"):
            return at(restore(page.api, query["cmp"]))
        return at(list_models(page.api, query.get("job", ""), [], select=True))

    def job_chosen(job_id: str, comparison_id: str, model_ids: list[str]) -> dict[Any, Any]:
        just_opened = bool(comparison_id) and not model_ids
        return at({} if just_opened else list_models(page.api, job_id, model_ids, select=True))

    outputs = list(parts.values())
    controls = [parts[name] for name in ("prompt", "system", "models", *SETTINGS)]
    parts["go"].click(pressed, controls, outputs, **QUIET)
    asked = [page.comparison_id.change, parts["timer"].tick]
    gr.on(asked, lambda one: at(show(page.api, one)), page.comparison_id, outputs, **QUIET)
    page.blocks.load(opened, None, outputs, **QUIET)
    page.job_id.change(job_chosen, [page.job_id, page.comparison_id, parts["models"]], outputs, **QUIET)
    page.tab.select(
        lambda job_id, now: at(list_models(page.api, job_id, now, select=False)),
        [page.job_id, parts["models"]],
        outputs,
        **QUIET,
    )
