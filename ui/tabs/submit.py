"""The New job tab: a form for the common settings, the whole job as JSON beside it, a dry run, and the submission.

Knows which control is where and how they are wired. The JSON is what is submitted; job_form.py keeps form and JSON in
step, form_values.py says what controls show, and the API alone judges a job.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from app.core.job_config import DistillConfig
from app.core.recipes import RECIPES
from app.core.schemas import DatasetOut
from ui import job_form
from ui.charts import label
from ui.client import ApiProblem, StillhouseClient
from ui.config_schema import ConfigSchema
from ui.form_values import control_help, control_updates, dataset_choices, field_marks, visibility
from ui.job_form import CONTROLS, WEIGHT, NotJson
from ui.page import QUIET, Page, named, raw_html
from ui.text import esc
from ui.views import problems, submission

STUDENTS = (("Some of the teacher’s layers", "from_teacher"), ("An existing model", "checkpoint"))
FILE_TYPES = [".jsonl", ".csv", ".parquet"]


@dataclass(frozen=True)
class Offer:
    """What the API offers for the form: its defaults, and what was used or uploaded before, newest first."""

    schema: ConfigSchema
    datasets: Sequence[DatasetOut]
    teachers: Sequence[str]


def read_offer(api: StillhouseClient) -> dict[str, Any]:
    try:
        schema = ConfigSchema(api.config_schema().json_schema)
        teachers = dict.fromkeys(model.source for model in api.models() if model.kind == "teacher")
        return {"offer": Offer(schema, api.datasets(), list(teachers)), "key": uuid.uuid4().hex, "banner": ""}
    except ApiProblem as problem:
        return {"banner": problems.banner(problem)}


def take_offer(
    text: str, values: Mapping[str, Any], untouched: job_form.Job, schema: ConfigSchema, offer: Offer | None
) -> dict[str, Any]:
    """The lists to choose from, and what fills an empty teacher or data set: the newest.

    A form that nobody touched also takes the API's defaults; from any other, what was typed meanwhile is kept.
    """
    if offer is None:
        return {}
    lists = {
        "dataset": gr.update(choices=dataset_choices(offer.datasets)),
        "teacher": gr.update(choices=list(offer.teachers)),
    }
    try:
        job = job_form.with_values(job_form.parse(text), values, schema)
    except NotJson:
        return lists
    start = job_form.first_job(offer.schema) if job == untouched else job
    newest = {"dataset": offer.datasets[0].id if offer.datasets else "", "teacher": next(iter(offer.teachers), "")}
    suggested = job_form.suggest(start, newest)
    if suggested == job:
        return lists
    shown = control_updates(suggested, schema)
    for key, choices in lists.items():
        shown[key] = {**choices, "value": shown[key]} if key in shown else choices
    return {**shown, "json": job_form.dump(suggested)}


def form_changed(text: str, values: Mapping[str, Any], schema: ConfigSchema) -> dict[str, Any]:
    """The JSON after a change in the form. Text that is no JSON is not overwritten: the reader mends it first."""
    try:
        job = job_form.with_values(job_form.parse(text), values, schema)
    except NotJson as error:
        return {"json_note": json_note(error)}
    return {"json": job_form.dump(job), "json_note": "", **visibility(job, schema)}


def recipe_chosen(text: str, recipe: str, schema: ConfigSchema) -> dict[str, Any]:
    """The sections that the recipe fills are reset to it, in JSON and form."""
    try:
        job = job_form.with_recipe_defaults(job_form.parse(text), recipe, schema)
    except NotJson as error:
        return {"json_note": json_note(error)}
    return {"json": job_form.dump(job), "json_note": "", **control_updates(job, schema)}


def json_changed(text: str, schema: ConfigSchema) -> dict[str, Any]:
    """The form after an edit of the JSON."""
    try:
        job = job_form.parse(text)
    except NotJson as error:
        return {"json_note": json_note(error)}
    return {"json_note": "", **control_updates(job, schema)}


def json_note(error: NotJson) -> str:
    return f'<p class="sh-wrong-note" role="alert">The JSON is not complete yet. {esc(error)}</p>'


def check(api: StillhouseClient, text: str, schema: ConfigSchema) -> dict[str, Any]:
    """A dry run: parameters, memory and warnings, or the problems at their fields."""
    return _ask(text, schema, title="This job would not be accepted.", ask=lambda job: _checked(api, job))


def _checked(api: StillhouseClient, job: job_form.Job) -> dict[str, Any]:
    return {"result": submission.check_result(api.dry_run(job))}


def submit(api: StillhouseClient, text: str, key: str, schema: ConfigSchema) -> dict[str, Any]:
    """Queues the job; its id goes into the address and the Progress tab opens. Pressing twice makes one job."""

    def queued(job: job_form.Job) -> dict[str, Any]:
        accepted = api.submit(job, idempotency_key=key or uuid.uuid4().hex)
        return {"job_id": accepted.id, "tabs": gr.Tabs(selected="progress"), "result": "", "key": uuid.uuid4().hex}

    return _ask(text, schema, title="The job was not accepted.", ask=queued)


def _ask(
    text: str, schema: ConfigSchema, *, title: str, ask: Callable[[job_form.Job], dict[str, Any]]
) -> dict[str, Any]:
    try:
        job = job_form.parse(text)
    except NotJson as error:
        return {"json_note": json_note(error)}
    try:
        return {"banner": "", **field_marks((), job, schema), **ask(job)}
    except ApiProblem as problem:
        listed = problems.problem_list(problem, title=title)
        return {"result": listed, "banner": problems.banner(problem), **field_marks(problem.errors, job, schema)}


def upload(api: StillhouseClient, file: str | None, text: str) -> dict[str, Any]:
    """Sends the file to the API; a data set that is accepted becomes the job's."""
    if not file:
        return {"data_note": ""}
    path = Path(file)
    try:
        found = api.upload_dataset(path, name=path.name)
        choices = dataset_choices(api.datasets())
    except ApiProblem as problem:
        listed = problems.problem_list(problem, title="The file was not accepted.")
        return {"data_note": listed, "banner": problems.banner(problem)}
    shown = {"data_note": submission.dataset_result(found), "dataset": gr.update(choices=choices, value=found.id)}
    try:
        job = job_form.parse(text)
    except NotJson:
        return shown
    job.setdefault("config", {})["data"] = {**job["config"].get("data", {}), "kind": "dataset", "dataset_id": found.id}
    return {**shown, "json": job_form.dump(job)}


# --- layout and wiring --------------------------------------------------------------------------------------


def build(page: Page) -> None:
    """Lays the tab out inside an open gr.Tab and wires it."""
    # The API's own schema comes with its offer; this one has the form ready at once, and without an API.
    schema = ConfigSchema(DistillConfig.model_json_schema())
    untouched = job_form.first_job(schema)
    parts: dict[str, Any] = {"banner": page.banner, "job_id": page.job_id, "tabs": page.tabs}
    with gr.Row(elem_classes="sh-tab sh-submit", equal_height=False):
        with gr.Column(scale=3, min_width=320):
            _build_form(parts, schema, job_form.values_of(untouched, schema))
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
    _wire_form(page, parts, schema, untouched)
    _wire_buttons(page, parts, schema, check_button, submit_button)


def _card(title: str, sentence: str = "") -> gr.Column:
    """A framed column with a heading, to be filled in a `with`."""
    with gr.Column(elem_classes="sh-card") as card:
        raw_html(f"<h3>{title}</h3>" + (f"<p>{sentence}</p>" if sentence else ""))
    return card


def _build_form(parts: dict[str, Any], schema: ConfigSchema, values: Mapping[str, Any]) -> None:
    info = control_help(schema)
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
    with _card("Sampling and correction"), gr.Row(elem_classes="sh-grid"):
        kinds = [(kind.replace("_", " "), kind) for kind in schema.kinds("sampling")]
        parts["sampling_kind"] = gr.Dropdown(
            kinds, value=values["sampling_kind"], label="Batches", info=info["sampling_kind"], elem_id="f-sampling"
        )
        _numbers(
            parts,
            info,
            values,
            {"max_new_tokens": "New tokens", "phi_start": "Student share φ", "rounds": "SCRG rounds"},
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
        }
        _numbers(parts, info, values, names)


def _numbers(
    parts: dict[str, Any], info: Mapping[str, str], values: Mapping[str, Any], names: Mapping[str, str]
) -> None:
    for key, name in names.items():
        elem_id = "f-" + key.replace(":", "-")
        parts[key] = gr.Number(values[key], label=name, info=info[key], min_width=100, elem_id=elem_id)


def _wire_form(page: Page, parts: dict[str, Any], schema: ConfigSchema, untouched: job_form.Job) -> None:
    keys = [control.key for control in CONTROLS] + [WEIGHT + kind for kind in schema.kinds("losses")]
    outputs = list(parts.values())
    form = [parts["json"], *(parts[key] for key in keys)]

    def changed(text: str, *values: Any) -> dict[Any, Any]:
        return named(parts, form_changed(text, dict(zip(keys, values, strict=True)), schema))

    def offered(offer: Offer | None, text: str, *values: Any) -> dict[Any, Any]:
        given = dict(zip(keys, values, strict=True))
        return named(parts, take_offer(text, given, untouched, schema, offer))

    # The last of several quick edits must win.
    latest = {**QUIET, "trigger_mode": "always_last"}
    gr.on([parts[key].input for key in keys if key != "recipe"], changed, form, outputs, **latest)
    parts["recipe"].input(
        lambda text, recipe: named(parts, recipe_chosen(text, recipe, schema)),
        [parts["json"], parts["recipe"]],
        outputs,
        **latest,
    )
    parts["json"].input(lambda text: named(parts, json_changed(text, schema)), parts["json"], outputs, **latest)
    # In two steps, so that what a quick reader typed while the API was asked is seen, and kept.
    asked = [page.blocks.load, page.tab.select]
    gr.on(asked, lambda: named(parts, read_offer(page.api)), None, outputs, **QUIET).then(
        offered, [parts["offer"], *form], outputs, **QUIET
    )


def _wire_buttons(
    page: Page, parts: dict[str, Any], schema: ConfigSchema, check_button: gr.Button, submit_button: gr.Button
) -> None:
    outputs = list(parts.values())
    # These may take a while (a model's header is read): Gradio shows that on the result.
    shown = {"api_visibility": "private", "show_progress": "minimal", "show_progress_on": parts["result"]}
    check_button.click(
        lambda text: named(parts, check(page.api, text, schema)), parts["json"], outputs, concurrency_limit=8, **shown
    )
    submit_button.click(
        lambda text, key: named(parts, submit(page.api, text, key, schema)),
        [parts["json"], parts["key"]],
        outputs,
        concurrency_limit=8,
        **shown,
    )
    parts["file"].upload(
        lambda file, text: named(parts, upload(page.api, file, text)),
        [parts["file"], parts["json"]],
        outputs,
        concurrency_limit=4,
        api_visibility="private",
        show_progress_on=parts["data_note"],
    )
