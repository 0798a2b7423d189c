"""Below the panes: one answer, read token by token by two models.

Knows the choices and when to poll. Does not know HTML (views/divergence.py); divergence.js shows a token's details.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from ui.client import ApiProblem, StillhouseClient
from ui.model_names import Models, kind_of, labelled
from ui.page import QUIET, Page, live_html, named
from ui.views import divergence, problems

POLL_S = 0.7
CHOICES = ("of", "teacher_id", "student_id")


def choices(api: StillhouseClient, comparison_id: str) -> dict[str, Any]:
    """What can be read in the comparison: by default the student's answer, by the first teacher and that student."""
    nothing = {name: gr.update(choices=[], value=None) for name in CHOICES} | {"view": divergence.EMPTY}
    if not comparison_id:
        return nothing | {"timer": gr.Timer(active=False)}
    try:
        comparison = api.comparison(comparison_id)
        ids = [answer.model_id for answer in comparison.answers if answer.tokens]
        models = {model.id: model for model in api.models(limit=1000)}
    except ApiProblem as problem:
        return {"banner": problems.banner(problem)}
    found = {name: gr.update(choices=labelled(ids, models)) for name in CHOICES}
    for name, value in default_pair(ids, models).items():
        found[name]["value"] = value
    return nothing | found | {"timer": gr.Timer(active=False)}


def default_pair(ids: Sequence[str], models: Models) -> dict[str, str | None]:
    teacher = next((one for one in ids if kind_of(one, models) == "teacher"), next(iter(ids), None))
    others = [one for one in ids if one != teacher]
    by_kind = [one for kind in ("student", "checkpoint") for one in others if kind_of(one, models) == kind]
    student = next(iter([*by_kind, *others]), None)
    return {"of": student, "teacher_id": teacher, "student_id": student}


def read(api: StillhouseClient, comparison_id: str, chosen: Sequence[str | None]) -> dict[str, Any]:
    """Asks for the reading, or looks how far it is: the API keeps one per answer and pair."""
    if not comparison_id or not all(chosen):
        return {"view": divergence.EMPTY, "timer": gr.Timer(active=False)}
    try:
        found = api.divergence(comparison_id, {name: str(value) for name, value in zip(CHOICES, chosen, strict=True)})
    except ApiProblem as problem:
        if problem.status == 0 or problem.status >= 500:
            return {"banner": problems.banner(problem)}
        refused = problems.problem_list(problem, title="This answer cannot be read.")
        return {"view": refused, "timer": gr.Timer(active=False)}
    waiting = found.status in ("queued", "running")
    return {"view": divergence.view(found), "timer": gr.Timer(active=waiting), "banner": ""}


def build(page: Page, *, ended: gr.Textbox) -> None:
    """An accordion; `ended` names the comparison whose answers can be read, or is empty."""
    parts: dict[str, Any] = {"banner": page.banner}
    script = Path(__file__).parents[1].joinpath("divergence.js").read_text(encoding="utf-8")
    with gr.Accordion("Where they part, token by token", open=False, elem_id="divergence", elem_classes="sh-fold"):
        with gr.Row(equal_height=True):
            for name, label in zip(
                CHOICES, ("Whose answer", "Read by (teacher, p)", "and by (student, q)"), strict=True
            ):
                parts[name] = gr.Dropdown([], label=label, elem_id=f"divergence-{name}", min_width=200)
            go = gr.Button("Read", variant="primary", elem_id="divergence-go", min_width=100, scale=0)
        parts["view"] = live_html(divergence.EMPTY, elem_id="reading", js_on_load=script)
    parts["timer"] = gr.Timer(POLL_S, active=False)
    outputs = list(parts.values())
    chosen = [parts[name] for name in CHOICES]

    def look(comparison_id: str, *values: str | None) -> dict[Any, Any]:
        return named(parts, read(page.api, comparison_id, values))

    gr.on([go.click, parts["timer"].tick], look, [ended, *chosen], outputs, **QUIET)
    ended.change(lambda one: named(parts, choices(page.api, one)), ended, outputs, **QUIET)
