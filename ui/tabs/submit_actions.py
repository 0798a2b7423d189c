"""What the New job tab does when something is typed, chosen, uploaded, checked or submitted.

Knows the API's client and what the tab's parts are called. Does not know the layout (submit.py). Every function answers
new values by part; job_form.py keeps form and JSON in step, and the API alone judges a job.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from app.core.schemas import DatasetOut
from ui import job_form
from ui.client import ApiProblem, StillhouseClient
from ui.config_schema import ConfigSchema
from ui.form_values import control_updates, dataset_choices, field_marks, visibility
from ui.job_form import NotJson
from ui.text import esc
from ui.views import preview, problems, submission
from ui.views.pieces import callout

NO_DATA = callout("warning", "Choose or upload a data set first.")
NO_TEACHER = callout("warning", "Choose a teacher to see tokens: they are its tokenizer’s.")


@dataclass(frozen=True)
class Entered:
    """Both sides of the tab at one moment: the JSON's text, the form's values by key, and which was edited last."""

    text: str
    values: Mapping[str, Any]
    last_edit: str

    def job(self, schema: ConfigSchema) -> job_form.Job:
        """The job that the reader means, also while one side has not caught up with the other yet. Raises NotJson."""
        job = job_form.parse(self.text)
        return job_form.with_values(job, self.values, schema) if self.last_edit == "form" else job


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


def take_offer(entered: Entered, untouched: job_form.Job, schema: ConfigSchema, offer: Offer | None) -> dict[str, Any]:
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
        job = entered.job(schema)
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


def form_changed(entered: Entered, schema: ConfigSchema) -> dict[str, Any]:
    """The JSON after a change in the form. It is left alone when it says the same, when it was the JSON that changed
    the form, and when it is no JSON: the reader mends it first."""
    try:
        job = entered.job(schema)
        shown = {"json_note": "", **visibility(job, schema)}
        return shown if job == job_form.parse(entered.text) else {**shown, "json": job_form.dump(job)}
    except NotJson as error:
        return {"json_note": json_note(error)}


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


def take_draft(draft: str, schema: ConfigSchema) -> dict[str, Any]:
    """A whole job from elsewhere on the page (a clone) in place of what the form held; the draft's box is emptied."""
    if not draft:
        return {}
    job = job_form.parse(draft)
    cleared = {"draft": "", "json_note": "", "result": "", "data_note": "", "preview": ""}
    shown = control_updates(job, schema)
    marks = field_marks((), job, schema)
    return {**cleared, **{key: _both(marks.get(key), shown.get(key)) for key in {*marks, *shown}}, "json": draft}


def _both(mark: Any, value: Any) -> Any:
    """One update out of a field's mark and its new value."""
    if mark is None or value is None:
        return mark if value is None else value
    return {**mark, **value} if isinstance(value, dict) else {**mark, "value": value}


def show_data(api: StillhouseClient, entered: Entered, schema: ConfigSchema) -> dict[str, Any]:
    """The first rows of the job's data set, and row 1 as the job's teacher will read it."""
    try:
        config = entered.job(schema).get("config", {})
    except NotJson as error:
        return {"json_note": json_note(error)}
    data, teacher = config.get("data", {}), config.get("teacher", {}).get("model", "")
    if not data.get("dataset_id"):
        return {"preview": NO_DATA}
    fields = ("template", "responses", "max_prompt_tokens", "max_response_tokens")
    request = {field: data.get(field, schema.default(f"data.{field}")) for field in fields}
    try:
        shown = preview.rows_preview(api.dataset_rows(data["dataset_id"]).data)
    except ApiProblem as problem:
        return {"preview": problems.problem_list(problem, title="The data set cannot be shown.")}
    if not teacher:
        return {"preview": shown + NO_TEACHER}
    try:
        found = api.preview(data["dataset_id"], {**request, "teacher": teacher})
    except ApiProblem as problem:
        return {"preview": shown + problems.problem_list(problem, title="The tokens cannot be shown.")}
    limits = {name: int(request[name]) for name in ("max_prompt_tokens", "max_response_tokens")}
    return {"preview": preview.tokens_preview(found, **limits) + shown}


def json_note(error: NotJson) -> str:
    return f'<p class="sh-wrong-note" role="alert">The JSON is not complete yet. {esc(error)}</p>'


def check(api: StillhouseClient, entered: Entered, schema: ConfigSchema) -> dict[str, Any]:
    """A dry run: parameters, memory and warnings, or the problems at their fields."""

    def checked(job: job_form.Job) -> dict[str, Any]:
        return {"result": submission.check_result(api.dry_run(job))}

    return _ask(entered, schema, title="This job would not be accepted.", ask=checked)


def submit(api: StillhouseClient, entered: Entered, key: str, schema: ConfigSchema) -> dict[str, Any]:
    """Queues the job; its id goes into the address and the Progress tab opens. Pressing twice makes one job."""

    def queued(job: job_form.Job) -> dict[str, Any]:
        accepted = api.submit(job, idempotency_key=key or uuid.uuid4().hex)
        return {"job_id": accepted.id, "tabs": gr.Tabs(selected="progress"), "result": "", "key": uuid.uuid4().hex}

    return _ask(entered, schema, title="The job was not accepted.", ask=queued)


def _ask(
    entered: Entered, schema: ConfigSchema, *, title: str, ask: Callable[[job_form.Job], dict[str, Any]]
) -> dict[str, Any]:
    try:
        job = entered.job(schema)
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
