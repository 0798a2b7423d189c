from __future__ import annotations

from typing import Any

from ui import job_form
from ui.client import FieldProblem
from ui.config_schema import ConfigSchema
from ui.form_values import WRONG, control_help, control_updates, field_marks, visibility


def test_every_control_has_help(schema: ConfigSchema) -> None:
    described = control_help(schema)
    assert all(text or key == "student_kind" for key, text in described.items())
    assert set(described) >= {control.key for control in job_form.CONTROLS}


def test_only_the_controls_of_the_chosen_kinds_are_shown(schema: ConfigSchema) -> None:
    def shown(job: dict[str, Any]) -> dict[str, bool]:
        return {key: update["visible"] for key, update in visibility(job, schema).items()}

    job = job_form.first_job(schema)
    by_student, sampled = {"layers": True, "checkpoint": False}, {"batches_per_generation": True}
    assert shown(job) == by_student | sampled | {"phi_start": False, "student_fraction": True}
    job["config"]["student"] = {"kind": "checkpoint", "model": "x"}
    job["config"]["sampling"] = {"kind": "adaptive_off_policy"}
    by_student = {"layers": False, "checkpoint": True}
    assert shown(job) == by_student | sampled | {"phi_start": True, "student_fraction": False}
    job["config"]["sampling"] = {"kind": "on_policy"}
    assert shown(job) == by_student | sampled | {"phi_start": False, "student_fraction": False}
    job["config"]["sampling"] = {"kind": "ground_truth"}
    assert shown(job) == by_student | {"batches_per_generation": False, "phi_start": False, "student_fraction": False}


def test_updates_show_the_job_and_skip_what_a_control_cannot_show(schema: ConfigSchema) -> None:
    job = job_form.first_job(schema)
    job["config"]["sampling"]["kind"] = "telepathy"
    del job["config"]["training"]["seed"]
    updates = control_updates(job, schema)
    assert updates["max_steps"] == 1000
    assert updates["layers"]["value"] == 10
    assert "sampling_kind" not in updates
    assert "seed" not in updates


def test_a_problem_is_marked_at_its_field_and_the_others_are_clean(schema: ConfigSchema) -> None:
    job = job_form.first_job(schema)
    marks = field_marks([FieldProblem("config.student.layers", "too many"), FieldProblem("config", "odd")], job, schema)
    assert marks["layers"]["info"] == "⚠ too many"
    assert marks["layers"]["elem_classes"] == [WRONG]
    assert marks["seed"] == {"__type__": "update", "info": control_help(schema)["seed"], "elem_classes": []}
