"""The Compare tab: one prompt or a conversation, two to four models, side by side while they write; blind if wanted.

Knows the controls and when to poll. Does not know what pressing one does (compare_actions.py), nor the parts below the
panes, which have files of their own. The comparison's id is in the address, so its prompt, settings and answers come
back from the API after a refresh or in another browser.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gradio as gr

from app.core.compare_schemas import MAX_MODELS
from ui.page import QUIET, Page, live_html, named, raw_html
from ui.tabs import batch, checkpoints, divergence, past
from ui.tabs import compare_actions as actions
from ui.views import panes

POLL_S = 0.5  # short requests, so that no connection is held open while models write
PROMPT = "Explain in two sentences why the sky is blue."
TEMPLATES = [("Each side's own", "auto"), ("Chat", "chat"), ("Alpaca", "alpaca"), ("Plain", "plain")]


def build(page: Page) -> None:
    """Lays the tab out inside an open gr.Tab and wires its timer."""
    parts: dict[str, Any] = {"banner": page.banner, "id": page.comparison_id}
    with gr.Column(elem_classes="sh-tab"):
        with gr.Row(elem_classes="sh-ask-models", equal_height=True):
            _build_prompt(parts)
            _build_settings(page, parts)
        parts["note"] = raw_html("", elem_id="compare-note")
        parts["panes"] = live_html(panes.EMPTY, elem_id="panes")
        with gr.Row(visible=False, elem_classes="sh-votes", elem_id="vote") as parts["votes"]:
            choices = (("A is better", "a"), ("B is better", "b"), ("Tie", "tie"), ("Both bad", "both_bad"))
            buttons = {value: gr.Button(label, elem_id=f"vote-{value}", min_width=120) for label, value in choices}
        parts["ended"] = gr.Textbox(
            visible="hidden", elem_id="compare-ended", label="Ended comparison", container=False
        )
        divergence.build(page, ended=parts["ended"])
        batch.build(page, models=parts["models"])
        past.build(page, ended=parts["ended"])
    parts |= {"timer": gr.Timer(POLL_S, active=False), "listed_for": gr.State("")}
    _wire(page, parts)
    _wire_votes(page, parts, buttons)


def _build_prompt(parts: dict[str, Any]) -> None:
    with gr.Column(scale=3, min_width=320, elem_classes="sh-card"):
        parts["prompt"] = gr.Textbox(PROMPT, label="Prompt", lines=5, max_lines=12, elem_id="compare-prompt")
        parts["system"] = gr.Textbox(
            "", label="System prompt (optional)", lines=1, max_lines=6, elem_id="compare-system"
        )
        parts["blind"] = gr.Checkbox(
            False,
            label="Blind: two models, unnamed and in random order until you vote",
            elem_id="compare-blind",
        )
        with gr.Row(elem_classes="sh-go"):
            parts["go"] = gr.Button("Compare", variant="primary", elem_id="compare-go", min_width=120)
            parts["next"] = gr.Button("Go on with these answers", visible=False, elem_id="compare-next", min_width=120)
            parts["stop"] = gr.Button("Stop", variant="stop", visible=False, elem_id="compare-stop", min_width=100)


def _build_settings(page: Page, parts: dict[str, Any]) -> None:
    with gr.Column(scale=2, min_width=320, elem_classes="sh-card"):
        parts["models"] = gr.Dropdown(
            [],
            multiselect=True,
            max_choices=MAX_MODELS,
            label="Models",
            info="Two to four; by default those of the job chosen under Progress.",
            elem_id="compare-models",
        )
        checkpoints.build(page, models=parts["models"])
        with gr.Row():
            parts["max_new_tokens"] = gr.Number(128, label="New tokens, at most", min_width=120)
            parts["seed"] = gr.Number(0, label="Seed", min_width=120)
        with gr.Row():
            parts["temperature"] = gr.Slider(
                0, 2, 0, step=0.05, label="Temperature", info="0 is greedy.", min_width=120
            )
            parts["top_p"] = gr.Slider(0.05, 1, 1, step=0.05, label="Top-p", info="1 cuts nothing.", min_width=120)
        parts["template"] = gr.Dropdown(
            TEMPLATES,
            value="auto",
            label="Template",
            info="A student's own is the one its job trained it with.",
            elem_id="compare-template",
        )


def _wire(page: Page, parts: dict[str, Any]) -> None:
    def at(values: Mapping[str, Any]) -> dict[Any, Any]:
        return named(parts, values)

    def pressed(prompt: str, system: str, model_ids: list[str], blind: bool, *values: Any) -> dict[Any, Any]:
        settings = dict(zip(actions.SETTINGS, values, strict=True))
        return at(actions.start(page.api, prompt, system, model_ids, settings, blind=blind))

    def went_on(comparison_id: str, prompt: str, *values: Any) -> dict[Any, Any]:
        return at(actions.go_on(page.api, comparison_id, prompt, dict(zip(actions.SETTINGS, values, strict=True))))

    def opened(request: gr.Request) -> dict[Any, Any]:
        query = dict(request.query_params)
        return at(actions.open_at(page.api, query.get("job", ""), query.get("cmp", "")))

    def job_chosen(job_id: str, listed_for: str) -> dict[Any, Any]:
        return at(actions.choose_job(page.api, job_id, listed_for))

    outputs = list(parts.values())
    settings = [parts[name] for name in actions.SETTINGS]
    controls = [parts[name] for name in ("prompt", "system", "models", "blind")]
    asked_for = [
        parts["go"].click(pressed, [*controls, *settings], outputs, **QUIET),
        parts["next"].click(went_on, [page.comparison_id, parts["prompt"], *settings], outputs, **QUIET),
    ]
    for one in asked_for:
        one.then(None, js="() => stillhouse.bringIntoView('panes')", show_progress="hidden")
    parts["stop"].click(lambda one: at(actions.stop(page.api, one)), page.comparison_id, outputs, **QUIET)
    asked = [page.comparison_id.change, parts["timer"].tick]
    gr.on(asked, lambda one: at(actions.show(page.api, one)), page.comparison_id, outputs, **QUIET)
    page.blocks.load(opened, None, outputs, **QUIET)
    page.job_id.change(job_chosen, [page.job_id, parts["listed_for"]], outputs, **QUIET)
    page.chosen_models.change(
        lambda ids: at(actions.take(page.api, ids)) | {page.chosen_models: ""},
        page.chosen_models,
        [*outputs, page.chosen_models],
        **QUIET,
    )
    page.tab.select(
        lambda job_id, now: at(actions.list_models(page.api, job_id, now, select=False)),
        [page.job_id, parts["models"]],
        outputs,
        **QUIET,
    )


def _wire_votes(page: Page, parts: dict[str, Any], buttons: Mapping[str, gr.Button]) -> None:
    outputs = list(parts.values())
    for choice, button in buttons.items():

        def pressed(comparison_id: str, choice: str = choice) -> dict[Any, Any]:
            return named(parts, actions.vote(page.api, comparison_id, choice))

        button.click(pressed, page.comparison_id, outputs, **QUIET)
