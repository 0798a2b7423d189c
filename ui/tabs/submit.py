"""The New job tab: a form for the common settings, and the whole job as JSON beside it.

Knows which control is where and how they are wired. The JSON is what is submitted; submit_actions.py says what happens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gradio as gr

from app.core.job_config import DistillConfig
from app.core.recipes import RECIPES
from ui import job_form
from ui.charts import label
from ui.config_schema import ConfigSchema
from ui.form_values import control_help, is_shown
from ui.job_form import CONTROLS, WEIGHT
from ui.page import QUIET, Page, live_html, named, raw_html
from ui.tabs import submit_actions as actions
from ui.tabs.submit_actions import Entered

STUDENTS = (("Some of the teacher’s layers", "from_teacher"), ("An existing model", "checkpoint"))
RESPONSES = {
    "given": "Data’s, else teacher’s",
    "teacher": "All by the teacher",
    "student": "Data’s, else none",
}
FILE_TYPES = [".jsonl", ".csv", ".parquet"]
# Gradio's handlers cannot know which side of the tab was edited last; the page's script can.
WITH_LAST_EDIT = "(text, _, ...rest) => [text, stillhouse.lastEdit, ...rest]"


def build(page: Page) -> None:
    """Lays the tab out inside an open gr.Tab and wires it."""
    # The API's own schema comes with its offer; this one has the form ready at once, and without an API.
    schema = ConfigSchema(DistillConfig.model_json_schema())
    untouched = job_form.first_job(schema)
    parts: dict[str, Any] = {"banner": page.banner, "job_id": page.job_id, "tabs": page.tabs, "draft": page.draft}
    with gr.Row(elem_classes="sh-tab sh-submit", equal_height=False):
        with gr.Column(scale=3, min_width=320, elem_id="job-form"):
            _build_form(parts, schema, untouched)
        with gr.Column(scale=2, min_width=320, elem_classes="sh-side"):
            with _card("The whole job", "What is submitted. It follows the form, and the form follows it."):
                parts["json"] = gr.Code(
                    job_form.dump(untouched),
                    language="json",
                    show_label=False,
                    lines=18,
                    max_lines=20,
                    elem_id="job-json",
                )
                parts["json_note"] = raw_html("")
            with gr.Row():
                check_button = gr.Button("Check", elem_id="job-check", min_width=120)
                submit_button = gr.Button("Submit job", variant="primary", elem_id="job-submit", min_width=160)
            parts["result"] = raw_html("", elem_id="job-result")
    parts |= {"key": gr.State(""), "offer": gr.State(None)}
    parts["last_edit"] = gr.Textbox(visible="hidden", label="Edited last", elem_id="last-edit")
    _wire_form(page, parts, schema, untouched)
    _wire_buttons(page, parts, schema, check_button, submit_button)


def _card(title: str, sentence: str = "") -> gr.Column:
    """A framed column with a heading, to be filled in a `with`."""
    with gr.Column(elem_classes="sh-card") as card:
        raw_html(f"<h3>{title}</h3>" + (f"<p>{sentence}</p>" if sentence else ""))
    return card


def _build_form(parts: dict[str, Any], schema: ConfigSchema, job: job_form.Job) -> None:
    info, values = control_help(schema), job_form.values_of(job, schema)
    with _card("Job"):
        parts["name"] = gr.Textbox(label="Name", info=info["name"], max_lines=1, elem_id="f-name")
        recipes = [(f"{name}: {recipe['summary']}", name) for name, recipe in RECIPES.items()]
        parts["recipe"] = gr.Radio(
            recipes, value=values["recipe"], label="Recipe", info=info["recipe"], elem_id="f-recipe"
        )
    with _card("Models"):
        parts["teacher"] = gr.Dropdown(
            [], allow_custom_value=True, label="Teacher", info=info["teacher"], elem_id="f-teacher"
        )
        with gr.Row():
            parts["student_kind"] = gr.Radio(
                STUDENTS, value="from_teacher", label="Student made of", elem_id="f-student"
            )
            parts["layers"] = gr.Number(
                values["layers"], label="Layers", info=info["layers"], elem_id="f-layers", min_width=140
            )
            parts["checkpoint"] = gr.Textbox(
                label="Student model", info=info["checkpoint"], visible=False, max_lines=1, elem_id="f-checkpoint"
            )
    with _card("Data"):
        with gr.Row(equal_height=False, elem_classes="sh-upload"):
            parts["dataset"] = gr.Dropdown(
                [], allow_custom_value=True, label="Data set", info=info["dataset"], elem_id="f-dataset", scale=3
            )
            parts["file"] = gr.UploadButton(
                "Upload a file…", file_types=FILE_TYPES, elem_id="f-file", scale=1, min_width=150
            )
        raw_html(
            '<p class="sh-note">JSONL, CSV or Parquet; prompts alone, with responses, chats, Alpaca or ShareGPT.</p>'
        )
        parts["data_note"] = raw_html("", elem_id="data-note")
        with gr.Row(elem_classes="sh-grid"):
            parts["template"] = gr.Dropdown(
                schema.choices("data.template"),
                value=values["template"],
                label="Template",
                info=info["template"],
                elem_id="f-template",
                min_width=120,
            )
            parts["responses"] = gr.Dropdown(
                [(RESPONSES.get(one, one), one) for one in schema.choices("data.responses")],
                value=values["responses"],
                label="Responses",
                info=info["responses"],
                elem_id="f-responses",
                min_width=120,
            )
            _numbers(parts, info, values, {"dev_rows": "Held-out rows"})
        parts["show_data"] = gr.Button("Show rows, tokens and lengths", size="sm", elem_id="f-show-data")
        parts["preview"] = live_html("", elem_id="data-preview")
    with _card("Sampling and correction"), gr.Row(elem_classes="sh-grid"):
        kinds = [(kind.replace("_", " "), kind) for kind in schema.kinds("sampling")]
        parts["sampling_kind"] = gr.Dropdown(
            kinds, value=values["sampling_kind"], label="Batches", info=info["sampling_kind"], elem_id="f-sampling"
        )
        _numbers(
            parts,
            info,
            values,
            {
                "max_new_tokens": "New tokens",
                "phi_start": "Student share φ",
                "student_fraction": "Student share",
                "batches_per_generation": "Batches at once",
                "candidates": "Candidates",
                "rounds": "SCRG rounds",
            },
        )
    with _card("Loss weights", "Every term is a mean; 0 leaves it out."), gr.Row(elem_classes="sh-grid"):
        _numbers(parts, info, values, {WEIGHT + kind: label(kind) for kind in schema.kinds("losses")})
    with _card("Training"), gr.Row(elem_classes="sh-grid"):
        names = {
            "max_steps": "Steps",
            "batch_size": "Batch size",
            "gradient_accumulation": "Accumulation",
            "learning_rate": "Learning rate",
            "seed": "Seed",
            "every_steps": "Evaluate every",
        }
        _numbers(parts, info, values, names)
    for key, shown in is_shown(job, schema).items():
        parts[key].visible = shown


def _numbers(
    parts: dict[str, Any], info: Mapping[str, str], values: Mapping[str, Any], names: Mapping[str, str]
) -> None:
    for key, name in names.items():
        elem_id = "f-" + key.replace(":", "-")
        parts[key] = gr.Number(values[key], label=name, info=info[key], min_width=100, elem_id=elem_id)


def _keys(schema: ConfigSchema) -> list[str]:
    return [control.key for control in CONTROLS] + [WEIGHT + kind for kind in schema.kinds("losses")]


def _entered(schema: ConfigSchema, text: str, last_edit: str, values: tuple[Any, ...]) -> Entered:
    return Entered(text, dict(zip(_keys(schema), values, strict=True)), last_edit)


def _wire_form(page: Page, parts: dict[str, Any], schema: ConfigSchema, untouched: job_form.Job) -> None:
    outputs = list(parts.values())
    both = [parts["json"], parts["last_edit"], *(parts[key] for key in _keys(schema))]

    def changed(text: str, last_edit: str, *values: Any) -> dict[Any, Any]:
        return named(parts, actions.form_changed(_entered(schema, text, last_edit, values), schema))

    def recipe_chosen(text: str, recipe: str) -> dict[Any, Any]:
        return named(parts, actions.recipe_chosen(text, recipe, schema))

    def offered(text: str, last_edit: str, *values_and_offer: Any) -> dict[Any, Any]:
        *values, offer = values_and_offer
        entered = _entered(schema, text, last_edit, tuple(values))
        return named(parts, actions.take_offer(entered, untouched, schema, offer))

    # The last of several quick edits must win. A Textbox's `input` says nothing of a paste or a deletion.
    latest = {**QUIET, "trigger_mode": "always_last"}
    edits = [
        parts[key].change if isinstance(parts[key], gr.Textbox) else parts[key].input
        for key in _keys(schema)
        if key != "recipe"
    ]
    gr.on(edits, changed, both, outputs, js=WITH_LAST_EDIT, **latest)
    parts["recipe"].input(recipe_chosen, [parts["json"], parts["recipe"]], outputs, **latest)
    parts["json"].input(lambda text: named(parts, actions.json_changed(text, schema)), parts["json"], outputs, **latest)
    page.draft.change(lambda draft: named(parts, actions.take_draft(draft, schema)), page.draft, outputs, **QUIET)
    # In two steps, so that what a quick reader typed while the API was asked is seen, and kept.
    asked = [page.blocks.load, page.tab.select]
    gr.on(asked, lambda: named(parts, actions.read_offer(page.api)), None, outputs, **QUIET).then(
        offered, [*both, parts["offer"]], outputs, js=WITH_LAST_EDIT, **QUIET
    )


def _wire_buttons(
    page: Page, parts: dict[str, Any], schema: ConfigSchema, check_button: gr.Button, submit_button: gr.Button
) -> None:
    outputs = list(parts.values())
    both = [parts["json"], parts["last_edit"], *(parts[key] for key in _keys(schema))]

    def checked(text: str, last_edit: str, *values: Any) -> dict[Any, Any]:
        return named(parts, actions.check(page.api, _entered(schema, text, last_edit, values), schema))

    def submitted(text: str, last_edit: str, *values_and_key: Any) -> dict[Any, Any]:
        *values, key = values_and_key
        return named(parts, actions.submit(page.api, _entered(schema, text, last_edit, tuple(values)), key, schema))

    def data_shown(text: str, last_edit: str, *values: Any) -> dict[Any, Any]:
        return named(parts, actions.show_data(page.api, _entered(schema, text, last_edit, values), schema))

    # These may take a while (a model's header is read): Gradio shows that on the result. Not queued: the queue's events
    # come over a connection of their own, and a browser has few to one host.
    slow: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal", "queue": False}
    on_result = {**slow, "show_progress_on": parts["result"], "js": WITH_LAST_EDIT}
    check_button.click(checked, both, outputs, **on_result)
    submit_button.click(submitted, [*both, parts["key"]], outputs, **on_result)
    on_data = {**slow, "show_progress_on": parts["preview"], "js": WITH_LAST_EDIT}
    parts["file"].upload(
        lambda file, text: named(parts, actions.upload(page.api, file, text)),
        [parts["file"], parts["json"]],
        outputs,
        show_progress_on=parts["data_note"],
        **slow,
    ).then(data_shown, both, outputs, **on_data)
    gr.on([parts["show_data"].click, parts["dataset"].input], data_shown, both, outputs, **on_data)
