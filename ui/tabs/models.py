"""The Models tab: a card of every distilled student, and what can be done with it.

Knows when they are read and what a button does. Does not know HTML (views/cards.py); cards.js asks before it deletes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

from app.core.schemas import ModelOut
from ui.client import ApiProblem, StillhouseClient
from ui.page import QUIET, Page, is_open_at, live_html, named, raw_html
from ui.views import cards, problems

SHOWN = 60
TOLD = {"rename": "The student could not be renamed.", "delete": "The student could not be deleted."}


def read(api: StillhouseClient) -> dict[str, Any]:
    """The newest students, each read by itself for the size of its files."""
    try:
        listed = api.models(limit=SHOWN, kind="student")
        students = [one for student in listed if (one := _there(api, student.id)) is not None]
        teachers = {model.id: model for model in api.models(limit=1000, kind="teacher")}
        datasets = {one.id: one.name for one in api.datasets()}
    except ApiProblem as problem:
        return {"banner": problems.banner(problem)}
    return {"cards": cards.cards(students, teachers, datasets), "banner": ""}


def _there(api: StillhouseClient, model_id: str) -> ModelOut | None:
    """None for one that was deleted since the list was read."""
    try:
        return api.model(model_id)
    except ApiProblem as problem:
        if problem.status == 404:
            return None
        raise


def act(api: StillhouseClient, model_id: str, action: str, name: str) -> str:
    """Renames or deletes; what the service refuses (it may be in use) is told in the note."""
    try:
        if action == "rename":
            api.rename_model(model_id, name)
        elif action == "delete":
            api.delete_model(model_id)
        else:
            raise ValueError(f"no action {action!r}")
    except ApiProblem as problem:
        return problems.problem_list(problem, title=TOLD[action])
    return ""


def pair(api: StillhouseClient, student_id: str) -> list[str]:
    """The student and its teacher, as far as they exist."""
    try:
        student = api.model(student_id)
    except ApiProblem:
        return [student_id]
    return [one for one in (student.teacher_id, student.id) if one]


def build(page: Page) -> None:
    parts: dict[str, Any] = {"banner": page.banner, "tabs": page.tabs, "pair": page.chosen_models}
    script = Path(__file__).parents[1].joinpath("cards.js").read_text(encoding="utf-8")
    with gr.Column(elem_classes="sh-tab"):
        parts["note"] = raw_html("", elem_id="models-note")
        parts["cards"] = live_html(cards.LOADING, elem_id="models", js_on_load=script)

    def on_button(event: gr.EventData) -> dict[Any, Any]:
        model_id, action = str(event.model), str(event.action)
        if action == "compare":
            chosen = ",".join(pair(page.api, model_id))
            return named(parts, {"pair": chosen, "tabs": gr.Tabs(selected="compare"), "note": ""})
        note = act(page.api, model_id, action, str(event.name))
        return named(parts, read(page.api) | {"note": note})

    outputs = list(parts.values())
    parts["cards"].select(on_button, None, outputs, **QUIET)
    page.tab.select(lambda: named(parts, read(page.api)), None, outputs, **QUIET)

    def opened(request: gr.Request) -> dict[Any, Any]:
        return named(parts, read(page.api) if is_open_at(request, "models") else {})

    page.blocks.load(opened, None, outputs, **QUIET)
