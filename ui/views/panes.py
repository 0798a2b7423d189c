"""A comparison as HTML: one pane per model, side by side, each with its own numbers.

Knows ComparisonOut and ModelOut. Answers are matched to panes by model id, so a pane can only show its own model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.core.compare_schemas import Answer, ComparisonOut
from app.core.schemas import ModelOut
from ui.text import count, duration, esc, model_name, number
from ui.views.pieces import callout, empty

KINDS = {"teacher": "Teacher", "untrained": "Untrained student", "student": "Student"}
EMPTY = empty(
    "Nothing compared yet.",
    "Write a prompt, choose two to four models, and press Compare: all get the same template, seed and settings.",
)


def model_name_of(model: ModelOut) -> str:
    """What people call it: of a teacher's source the last part, and no kind, which is always shown beside the name."""
    return model_name(model.name) if model.kind == "teacher" else model.name.removesuffix(" (untrained)")


def model_label(model: ModelOut) -> str:
    """For the list of models."""
    return f"{KINDS[model.kind]}: {model_name_of(model)}"


def panes(comparison: ComparisonOut, models: Mapping[str, ModelOut]) -> str:
    """Side by side in the order of the request; a model that has not answered yet says so."""
    answered = {answer.model_id: answer for answer in comparison.answers}
    cards = "".join(
        _pane(model_id, models.get(model_id), answered.get(model_id), comparison)
        for model_id in comparison.request.model_ids
    )
    failed = ""
    if comparison.error:
        title = f"The comparison failed: <code>{esc(comparison.error.code)}</code>"
        failed = callout("error", title, f"<p>{esc(comparison.error.message)}</p>")
    return f'{failed}<div class="sh-panes n{len(comparison.request.model_ids)}">{cards}</div>{_settings(comparison)}'


def _pane(model_id: str, model: ModelOut | None, answer: Answer | None, comparison: ComparisonOut) -> str:
    kind = model.kind if model else "student"
    name = model_name_of(model) if model else model_id
    if answer is None:
        done = comparison.status in ("succeeded", "failed")
        waiting = {"queued": "Waiting for a worker…", "running": "Writing…"}.get(comparison.status, "No answer.")
        body = f'<p class="sh-answer {"" if done else "sh-waiting"}">{waiting}</p>'
        return _card(kind, name, body, "")
    text = esc(answer.text) if answer.text.strip() else '<em class="sh-muted">(empty answer)</em>'
    cut = "" if answer.finished else '<p class="sh-note">Cut at the largest number of tokens.</p>'
    return _card(kind, name, f'<p class="sh-answer" dir="auto">{text}</p>{cut}', _numbers(answer))


def _card(kind: str, name: str, body: str, numbers: str) -> str:
    header = f"<header><span>{KINDS.get(kind, 'Model')}</span><h3><bdi>{esc(name)}</bdi></h3></header>"
    return f'<article class="sh-pane {esc(kind)}">{header}{body}{numbers}</article>'


def _numbers(answer: Answer) -> str:
    facts: Sequence[tuple[str, str]] = (
        ("tokens", f"{answer.tokens:,}"),
        ("tokens/s", number(answer.tokens_per_s)),
        ("time", f"{answer.seconds:.2f} s" if answer.seconds < 60 else duration(answer.seconds)),
        ("parameters", count(answer.parameters)),
        ("weights", f'<code title="{esc(answer.weights_sha256)}">{esc(answer.weights_sha256[:10])}</code>'),
    )
    return '<dl class="sh-numbers">' + "".join(f"<div><dt>{k}</dt><dd>{v}</dd></div>" for k, v in facts) + "</dl>"


def _settings(comparison: ComparisonOut) -> str:
    request = comparison.request
    sampling = "greedy"
    if request.temperature > 0:
        sampling = f"temperature {number(request.temperature)}, top-p {number(request.top_p)}"
    return (
        f'<p class="sh-note">The same for every side: chat template, {sampling}, seed {request.seed}, at most '
        f"{request.max_new_tokens:,} new tokens.</p>"
    )
