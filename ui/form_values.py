"""What the controls of the New job form show: values, help, visibility, and the API's problems at their fields.

Knows Gradio's updates. Does not know the layout (tabs/submit.py) or how a job's JSON is changed (job_form.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gradio as gr

from app.core.recipes import RECIPES
from app.core.schemas import DatasetOut
from ui.client import FieldProblem
from ui.config_schema import ConfigSchema
from ui.job_form import CONTROLS, WEIGHT, control_at, values_of

WRONG = "sh-wrong"
# Help where the schema has none, or speaks to readers of the API rather than of this form.
HELP: Mapping[str, str] = {
    "name": "Any name that you will recognise in the list of jobs.",
    "recipe": "Sets sampling, correction and losses, and who writes the responses; change them as you like.",
    "dataset": "Uploaded data sets, newest first.",
    "template": "How a row becomes a prompt.",
    "responses": "Whose are trained on.",
    "dev_rows": "Held out to measure on.",
    "every_steps": "Steps between evaluations.",
    "sampling_kind": "Where training sequences come from.",
    "max_new_tokens": "Longest sampled answer.",
    "phi_start": "Share of student batches at the start.",
    "student_fraction": "Share of student batches.",
    "batches_per_generation": "Student batches sampled together.",
    "candidates": "Rows tried for each one taken.",
    "rounds": "Corrections per sample; 0 is off.",
    "batch_size": "Sequences at a time.",
    "gradient_accumulation": "Batches per step.",
    "learning_rate": "Peak of the schedule.",
    "seed": "Repeats a run.",
    WEIGHT + "sft": "The data’s own tokens.",
    WEIGHT + "dac_kl": "Clipped divergence.",
    WEIGHT + "span": "Tokens inside phrases.",
}


def control_help(schema: ConfigSchema) -> dict[str, str]:
    """One sentence per control, by key."""
    described = {control.key: schema.help(control.path.removeprefix("config.")) for control in CONTROLS}
    weights = {WEIGHT + kind: summary for kind, summary in schema.kinds("losses").items()}
    return {**described, **weights, **HELP}


def dataset_choices(datasets: Sequence[DatasetOut]) -> list[tuple[str, str]]:
    """The end of the id tells data sets of one name apart."""
    return [(f"{one.name} · {one.rows:,} rows · {one.id[-6:].lower()}", one.id) for one in datasets]


def control_updates(job: Mapping[str, Any], schema: ConfigSchema) -> dict[str, Any]:
    """What every control shows for `job`; a value that a control cannot show leaves it as it is."""
    kinds: Mapping[str, Any] = {
        "recipe": RECIPES,
        "student_kind": schema.kinds("student"),
        "sampling_kind": schema.kinds("sampling"),
        "template": schema.choices("data.template"),
        "responses": schema.choices("data.responses"),
    }
    updates: dict[str, Any] = {key: gr.update(visible=shown) for key, shown in is_shown(job, schema).items()}
    for key, value in values_of(job, schema).items():
        if value in kinds[key] if key in kinds else value is not None:
            updates[key] = {**updates[key], "value": value} if key in updates else value
    return updates


def visibility(job: Mapping[str, Any], schema: ConfigSchema) -> dict[str, Any]:
    """Controls that belong to one kind of student or sampling are there only for it."""
    return {key: gr.update(visible=shown) for key, shown in is_shown(job, schema).items()}


def is_shown(job: Mapping[str, Any], schema: ConfigSchema) -> dict[str, bool]:
    """By key, of the controls that are not always there."""
    values = values_of(job, schema)
    from_teacher = values["student_kind"] != "checkpoint"
    return {
        "layers": from_teacher,
        "checkpoint": not from_teacher,
        "phi_start": schema.has("sampling.phi_start", kind=values["sampling_kind"]),
        "student_fraction": schema.has("sampling.student_fraction", kind=values["sampling_kind"]),
        "batches_per_generation": schema.has("sampling.batches_per_generation", kind=values["sampling_kind"]),
    }


def field_marks(errors: Sequence[FieldProblem], job: Mapping[str, Any], schema: ConfigSchema) -> dict[str, Any]:
    """Each control's help, or in its place what the API found wrong with its field."""
    wrong: dict[str, str] = {}
    for error in errors:
        key = control_at(error.path, job)
        if key:
            wrong.setdefault(key, error.message)
    return {
        key: gr.update(info=f"⚠ {wrong[key]}" if key in wrong else text, elem_classes=[WRONG] if key in wrong else [])
        for key, text in control_help(schema).items()
    }
