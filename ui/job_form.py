"""The submit form and the job's JSON, kept in step: form values into a job, and a job back into form values.

Knows the paths that the form covers. Does not know Gradio or the API. The JSON is the whole truth: what the form has no
control for (an expert's `scrg.position`) is never touched, unless the section's `kind` changes and has no such field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.core.recipes import RECIPES, with_recipe, without_recipe
from ui.config_schema import ConfigSchema

Job = dict[str, Any]


class NotJson(ValueError):
    """The editor's text is no JSON object; the message says where it stops being one."""


@dataclass(frozen=True)
class Control:
    """One control of the form: its key and the field it edits, as the API names it in errors."""

    key: str
    path: str


CONTROLS = (
    Control("name", "name"),
    Control("recipe", "config.recipe"),
    Control("teacher", "config.teacher.model"),
    Control("student_kind", "config.student.kind"),
    Control("layers", "config.student.layers"),
    Control("checkpoint", "config.student.model"),
    Control("dataset", "config.data.dataset_id"),
    Control("template", "config.data.template"),
    Control("responses", "config.data.responses"),
    Control("dev_rows", "config.data.dev_rows"),
    Control("sampling_kind", "config.sampling.kind"),
    Control("max_new_tokens", "config.sampling.max_new_tokens"),
    Control("phi_start", "config.sampling.phi_start"),
    Control("student_fraction", "config.sampling.student_fraction"),
    Control("batches_per_generation", "config.sampling.batches_per_generation"),
    Control("candidates", "config.sampling.candidates"),
    Control("rounds", "config.scrg.rounds"),
    Control("max_steps", "config.training.max_steps"),
    Control("batch_size", "config.training.batch_size"),
    Control("gradient_accumulation", "config.training.gradient_accumulation"),
    Control("learning_rate", "config.training.learning_rate"),
    Control("seed", "config.training.seed"),
    Control("every_steps", "config.evaluation.every_steps"),
)
# The order in which a reader expects them.
SECTIONS = ("recipe", "teacher", "student", "data", "sampling", "scrg", "losses", "training", "evaluation")
# One weight per kind of loss beside these; their keys are `weight:<kind>`.
WEIGHT = "weight:"


def parse(text: str) -> Job:
    """The job that the editor's `text` describes. Raises NotJson."""
    try:
        job = json.loads(text)
    except json.JSONDecodeError as error:
        raise NotJson(f"Line {error.lineno}, column {error.colno}: {error.msg}.") from error
    if not isinstance(job, dict):
        raise NotJson("The job must be a JSON object: {…}.")
    return job


def dump(job: Mapping[str, Any]) -> str:
    return json.dumps(job, indent=2, ensure_ascii=False)


def first_job(schema: ConfigSchema, *, teacher: str = "", dataset_id: str = "", layers: int = 10) -> Job:
    """What the form opens with: the default recipe, and the schema's defaults for every field that has a control."""
    recipe = str(schema.default("recipe"))
    config: Job = {
        "recipe": recipe,
        "teacher": {"model": teacher},
        "student": {"kind": "from_teacher", "layers": layers},
        "data": {"kind": "dataset", "dataset_id": dataset_id},
        "training": {},
        "evaluation": {},
    }
    job = with_recipe_defaults({"name": "", "config": config}, recipe, schema)
    for control in CONTROLS:
        section, _, field = control.path.removeprefix("config.").partition(".")
        if section in ("data", "training", "evaluation") and field not in job["config"][section]:
            job["config"][section][field] = schema.default(f"{section}.{field}")
    return job


def with_recipe_defaults(job: Mapping[str, Any], recipe: str, schema: ConfigSchema) -> Job:
    """A copy of `job` with what recipes fill set to `recipe`'s, spelled out as far as the form goes."""
    filled = with_recipe({**without_recipe(job.get("config", {})), "recipe": recipe})
    kind = filled["sampling"]["kind"]
    filled["sampling"] = {
        **filled["sampling"],
        "max_new_tokens": schema.default("sampling.max_new_tokens", kind=kind),
    }
    for field in ("phi_start", "student_fraction", "batches_per_generation", "candidates"):
        if schema.has(f"sampling.{field}", kind=kind):
            filled["sampling"].setdefault(field, schema.default(f"sampling.{field}", kind=kind))
    if isinstance(filled.get("data"), dict):
        responses = filled["data"].get("responses", schema.default("data.responses"))
        filled["data"] = {**filled["data"], "responses": responses}
    filled["losses"] = [{**loss, "weight": loss.get("weight", 1.0)} for loss in filled["losses"]]
    order = [section for section in SECTIONS if section in filled]
    return {**job, "config": {section: filled[section] for section in [*order, *(filled.keys() - set(order))]}}


def values_of(job: Mapping[str, Any], schema: ConfigSchema) -> dict[str, Any]:
    """Every control's value, and `weight:<kind>` per loss; None where the job says nothing (or something odd)."""
    config = job.get("config")
    if isinstance(config, dict) and config.get("recipe", "mgsr") in RECIPES:
        job = {**job, "config": with_recipe(config)}
    values = {control.key: _scalar(_get(job, control.path)) for control in CONTROLS}
    weights = {loss.get("kind"): _scalar(loss.get("weight", 1.0)) for loss in _dicts(_get(job, "config.losses"))}
    return values | {WEIGHT + kind: weights.get(kind, 0) for kind in schema.kinds("losses")}


def with_values(job: Mapping[str, Any], values: Mapping[str, Any], schema: ConfigSchema) -> Job:
    """A copy of `job` with the form's `values` in their places. A changed `kind` drops the fields it does not have."""
    new: Job = json.loads(json.dumps(job))
    config = new.setdefault("config", {})
    new["name"] = values["name"]
    config["recipe"] = values["recipe"]
    for section, key in (("student", "student_kind"), ("sampling", "sampling_kind")):
        config[section] = _refit(config.get(section), values[key], section, schema)
    for control in CONTROLS:
        if control.path.startswith("config.") and control.path.count(".") == 2 and not control.path.endswith(".kind"):
            _set(config, control.path, values[control.key], schema)
    config["losses"] = _losses(config.get("losses"), values)
    return new


def suggest(job: Mapping[str, Any], suggestions: Mapping[str, str]) -> Job:
    """A copy of `job` in which an empty teacher or data set is the suggested one, by control key."""
    new: Job = json.loads(json.dumps(job))
    for control in CONTROLS:
        _, _, place = control.path.partition(".")
        section, _, field = place.partition(".")
        found = new.get("config", {}).get(section)
        if control.key in suggestions and isinstance(found, dict) and not found.get(field):
            found[field] = suggestions[control.key]
    return new


def control_at(path: str, job: Mapping[str, Any]) -> str | None:
    """The key of the control that edits the field at `path`, as an error of the API names it; None if there is none."""
    losses = _dicts(_get(job, "config.losses"))
    weights = {f"config.losses.{index}.weight": f"{WEIGHT}{loss.get('kind')}" for index, loss in enumerate(losses)}
    return next((control.key for control in CONTROLS if control.path == path), weights.get(path))


def _refit(section: Any, kind: str, name: str, schema: ConfigSchema) -> Job:
    kept = section if isinstance(section, dict) else {}
    if kept.get("kind") != kind:
        kept = {field: value for field, value in kept.items() if schema.has(f"{name}.{field}", kind=kind)}
    return {"kind": kind, **{field: value for field, value in kept.items() if field != "kind"}}


def _set(config: Job, path: str, value: Any, schema: ConfigSchema) -> None:
    """Writes one control's value; a field that the section's kind does not have is left alone."""
    _, section_name, field = path.split(".")
    section = config.setdefault(section_name, {"kind": "dataset"} if section_name == "data" else {})
    if not isinstance(section, dict) or not schema.has(f"{section_name}.{field}", kind=section.get("kind")):
        return
    fitting = schema.fit(f"{section_name}.{field}", value, kind=section.get("kind"))
    if fitting is None:
        section.pop(field, None)
    else:
        section[field] = fitting


def _losses(losses: Any, values: Mapping[str, Any]) -> list[Job]:
    """The losses whose weight is not 0, in the job's order, new ones last; other settings of a loss stay."""
    wanted = {key.removeprefix(WEIGHT): weight for key, weight in values.items() if key.startswith(WEIGHT) and weight}
    kept = [{**loss, "weight": wanted.pop(loss["kind"])} for loss in _dicts(losses) if loss.get("kind") in wanted]
    return kept + [{"kind": kind, "weight": weight} for kind, weight in wanted.items()]


def _get(job: Any, path: str) -> Any:
    for part in path.split("."):
        job = job.get(part) if isinstance(job, Mapping) else None
    return job


def _scalar(value: Any) -> Any:
    return value if isinstance(value, str | int | float) else None


def _dicts(value: Any) -> list[Job]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
