"""What happens when a person presses one of a job's buttons, in the list or on the job's own page.

Knows the API's client and what the reader is told. live.js has asked already where something is lost.
"""

from __future__ import annotations

from dataclasses import dataclass

import gradio as gr

from ui.client import ApiProblem, StillhouseClient
from ui.job_form import dump
from ui.views import problems
from ui.views.job_actions import LABELS


@dataclass(frozen=True)
class Done:
    """What follows from an action: a note for the reader, a description to open in the form, a job that is gone."""

    note: str = ""
    draft: str = ""
    deleted: bool = False


def pressed(event: gr.EventData) -> tuple[str, str, str]:
    """Job, action and choice of a `select` that live.js sent."""
    return str(event.job), str(event.action), str(event.choice)


def act(api: StillhouseClient, job_id: str, action: str, choice: str) -> Done:
    """Does it; a refusal (the status has changed meanwhile) is told in the note."""
    try:
        match action:
            case "cancel":
                api.cancel(job_id)
            case "pause":
                api.pause(job_id)
            case "resume":
                api.resume(job_id)
            case "retry":
                api.retry(job_id, from_checkpoint=choice == "checkpoint")
            case "delete":
                api.delete_job(job_id)
                return Done(deleted=True)
            case "clone":
                job = api.job(job_id)
                return Done(draft=dump({"name": f"{job.name} (copy)"[:200], "config": job.config}))
            case _:
                raise ValueError(f"no action {action!r}")
    except ApiProblem as problem:
        return Done(note=problems.problem_list(problem, title=f"{LABELS[action]}: the service refused."))
    return Done()
