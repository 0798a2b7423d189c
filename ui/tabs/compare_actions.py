"""What the Compare tab does when something is asked, stopped, voted on or opened.

Knows the API's client and what the tab's parts are called. Does not know the layout (compare.py) or HTML
(views/panes.py). Every function answers new values by part; who is who in a blind comparison only the API knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gradio as gr

from app.core.compare_schemas import MAX_MODELS, ComparisonOut
from app.core.model_ids import checkpoint_id
from app.core.schemas import JobOut, ModelOut
from ui.client import ApiProblem, StillhouseClient
from ui.model_names import list_of_models
from ui.views import panes, problems
from ui.views.pieces import callout

NEED_PROMPT = callout("error", "Write a prompt first.")
NEED_MODELS = callout("error", "Choose two to four models.")
GONE = "It may have been deleted. Ask again above, or choose one under Earlier comparisons."
NEED_PAIR = callout("error", "A blind comparison is between two models: choose two.")
# The controls whose values go into the request, besides prompt and system prompt; integers travel as such.
SETTINGS = {"max_new_tokens": int, "temperature": float, "top_p": float, "seed": int, "template": str}


def models_of(job: JobOut) -> list[str]:
    """Teacher, untrained student and student of a job, as far as they exist."""
    return [model_id for model_id in (job.teacher_id, job.untrained_id, job.student_id) if model_id]


def request_of(prompt: str, system: str, model_ids: Sequence[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The body of POST /v1/comparisons; what is wrong with it, the API says."""
    messages = [{"role": "system", "content": system}] if system.strip() else []
    return {
        "model_ids": list(model_ids),
        "messages": [*messages, {"role": "user", "content": prompt}],
        **{name: _number(settings[name], kind) for name, kind in SETTINGS.items()},
    }


def _number(value: Any, kind: type) -> Any:
    return int(value) if kind is int and isinstance(value, float) and value.is_integer() else value


def list_models(api: StillhouseClient, job_id: str, chosen: Sequence[str], *, select: bool) -> dict[str, Any]:
    """The list of models, and which are chosen: with `select` those of job `job_id`.

    Without `select` the reader's choice stays, except that a student that has come out meanwhile joins its job.
    """
    try:
        known = {model.id: model for model in api.models()}
        own = models_of(api.job(job_id)) if job_id else []
    except ApiProblem as problem:
        return {"banner": problems.banner(problem)}
    if select or (chosen and list(chosen) == own[:-1]):
        return {"models": _choice(list(known.values()), [one for one in own if one in known])}
    return {"models": gr.update(choices=list_of_models(list(known.values()), chosen))}


def open_at(api: StillhouseClient, job_id: str, comparison_id: str) -> dict[str, Any]:
    """What the address opens with: the comparison in it with its own models, else the models of the job in it."""
    asked = restore(api, comparison_id) if comparison_id else list_models(api, job_id, [], select=True)
    return asked | {"listed_for": job_id}


def choose_job(api: StillhouseClient, job_id: str, listed_for: str) -> dict[str, Any]:
    """The models of a job that the reader chose under Progress. The address's own job is none: with it, the page was
    opened, and `open_at` knows better."""
    return {} if job_id == listed_for else list_models(api, job_id, [], select=True) | {"listed_for": job_id}


def _choice(models: Sequence[ModelOut], chosen: Sequence[str]) -> dict[str, Any]:
    """The list of models with those chosen that are there; whether a checkpoint still is, the API says when asked."""
    there = {model.id for model in models}
    value = [one for one in chosen if one in there or checkpoint_id(one)]
    return gr.update(choices=list_of_models(models, value), value=value)


def take(api: StillhouseClient, ids: str) -> dict[str, Any]:
    """Chooses the models that another tab sends here."""
    if not ids:
        return {}
    try:
        known = api.models()
    except ApiProblem as problem:
        return {"banner": problems.banner(problem)}
    return {"models": _choice(known, ids.split(","))}


def start(
    api: StillhouseClient,
    prompt: str,
    system: str,
    model_ids: Sequence[str],
    settings: Mapping[str, Any],
    *,
    blind: bool = False,
) -> dict[str, Any]:
    """Asks for a comparison; from then on its id in the address drives the page."""
    if not prompt.strip():
        return {"note": NEED_PROMPT}
    if not 2 <= len(model_ids) <= MAX_MODELS:
        return {"note": NEED_MODELS}
    if blind and len(model_ids) != 2:
        return {"note": NEED_PAIR}
    return _ask(api, request_of(prompt, system, model_ids, settings) | ({"blind": True} if blind else {}))


def go_on(api: StillhouseClient, comparison_id: str, prompt: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The next turn: each model is asked the new prompt after its own earlier answers."""
    if not prompt.strip():
        return {"note": NEED_PROMPT}
    try:
        model_ids = api.comparison(comparison_id).request.model_ids
    except ApiProblem as problem:
        return _refused(problem)
    return _ask(api, request_of(prompt, "", model_ids, settings) | {"previous_id": comparison_id})


def _ask(api: StillhouseClient, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        comparison = api.compare(request)
    except ApiProblem as problem:
        return _refused(problem)
    return {"note": "", "id": comparison.id, "timer": gr.Timer(active=True)}


def _refused(problem: ApiProblem) -> dict[str, Any]:
    return {
        "note": problems.problem_list(problem, title="The comparison was not accepted."),
        "banner": problems.banner(problem),
    }


def stop(api: StillhouseClient, comparison_id: str) -> dict[str, Any]:
    """What is written stays; one that has just ended needs no stop."""
    try:
        api.stop_comparison(comparison_id)
    except ApiProblem as problem:
        return {"banner": problems.banner(problem)}
    return {"timer": gr.Timer(active=True)}


def vote(api: StillhouseClient, comparison_id: str, choice: str) -> dict[str, Any]:
    """Stores the vote; the panes then say who was who."""
    try:
        api.vote(comparison_id, choice)
    except ApiProblem as problem:
        return {"note": problems.problem_list(problem, title="The vote was not taken.")}
    return show(api, comparison_id) | {"note": ""}


def show(api: StillhouseClient, comparison_id: str) -> dict[str, Any]:
    """The panes as they stand; the timer goes on while an answer is due, or while the API does not answer."""
    if not comparison_id:
        return {"panes": panes.EMPTY, "timer": gr.Timer(active=False), **_controls(None)}
    try:
        comparison = api.comparison(comparison_id)
        models = {} if comparison.hidden else models_in(api, comparison.request.model_ids)
    except ApiProblem as problem:
        if problem.status == 404:
            listed = problems.problem_list(problem, title="This comparison cannot be shown.", cure=GONE)
            return {"panes": listed, "timer": gr.Timer(active=False), **_controls(None)}
        return {"banner": problems.banner(problem)}
    waiting = comparison.status in ("queued", "running")
    shown = {"panes": panes.panes(comparison, models), "timer": gr.Timer(active=waiting), "banner": ""}
    return shown | _controls(comparison)


def models_in(api: StillhouseClient, model_ids: Sequence[str]) -> dict[str, ModelOut]:
    """Those that are still there, and of a checkpoint the job's untrained student, which has its name; a deleted one is
    called by its id."""
    found = {}
    for model_id in model_ids:
        checkpoint = checkpoint_id(model_id)
        try:
            known = api.job(checkpoint.job_id).untrained_id if checkpoint else model_id
            if known:
                found[known] = api.model(known)
        except ApiProblem as problem:
            if problem.status != 404:
                raise
    return found


def _controls(comparison: ComparisonOut | None) -> dict[str, Any]:
    """Which buttons make sense now. `ended` names the comparison once its answers can be read token by token."""
    waiting = comparison is not None and comparison.status in ("queued", "running")
    ended = comparison is not None and not waiting and not comparison.hidden and bool(comparison.answers)
    votable = comparison is not None and comparison.hidden and comparison.status == "succeeded"
    return {
        "stop": gr.Button(visible=waiting),
        "next": gr.Button(visible=ended),
        "votes": gr.Row(visible=votable),
        "ended": comparison.id if comparison is not None and ended else "",
    }


def restore(api: StillhouseClient, comparison_id: str) -> dict[str, Any]:
    """The controls as they were when the comparison in the address was asked for."""
    try:
        comparison = api.comparison(comparison_id)
        models = api.models()
    except ApiProblem as problem:
        return {"banner": problems.banner(problem)}
    if comparison.hidden:  # nobody is to know which two they are
        return controls_of(comparison) | {"models": gr.update(choices=list_of_models(models, []))}
    return controls_of(comparison) | {"models": _choice(models, comparison.request.model_ids)}


def controls_of(comparison: ComparisonOut) -> dict[str, Any]:
    request = comparison.request
    said = {message.role: message.content for message in request.messages}
    values: dict[str, Any] = {name: getattr(request, name) for name in SETTINGS}
    return values | {"prompt": said.get("user", ""), "system": said.get("system", ""), "blind": request.blind}
