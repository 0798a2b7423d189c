"""A comparison as HTML: one pane per model, side by side, each with its own numbers, also while it is written.

Knows ComparisonOut. Answers are matched to panes by model id, so a pane can only show its own model. What models write
is text: escaped, with its own line breaks and direction, never Markdown.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.core.compare_schemas import Answer, ComparisonLine, ComparisonOut, Turn
from app.core.schemas import Page
from ui.model_names import KINDS, Models, kind_of, label_of, name_of
from ui.text import count, duration, esc, number
from ui.views.pieces import callout, empty

VOTES = {"a": "A is better", "b": "B is better", "tie": "A tie", "both_bad": "Both bad"}
EMPTY = empty(
    "Nothing compared yet.",
    "Write a prompt, choose two to four models, and press Compare: all get the same seed and settings.",
)


def panes(comparison: ComparisonOut, models: Models) -> str:
    """Side by side in the order of the request; a model that has not answered yet says so."""
    answered = {answer.model_id: answer for answer in comparison.answers}
    cards = "".join(
        _pane(model_id, models, answered.get(model_id), comparison) for model_id in comparison.request.model_ids
    )
    return (
        f'{_above(comparison, models)}<div class="sh-panes n{len(comparison.request.model_ids)}">{cards}</div>'
        f"{_below(comparison)}"
    )


def _above(comparison: ComparisonOut, models: Models) -> str:
    if comparison.error:
        title = f"The comparison failed: <code>{esc(comparison.error.code)}</code>"
        return callout("error", title, f"<p>{esc(comparison.error.message)}</p>")
    if comparison.vote:
        who = "; ".join(
            f"{letter} was {esc(label_of(model_id, models))}"
            for letter, model_id in zip("AB", comparison.request.model_ids, strict=True)
        )
        return callout("good", f"You said: {VOTES[comparison.vote]}.", f'<p dir="auto">{who}.</p>')
    return ""


def _pane(model_id: str, models: Models, answer: Answer | None, comparison: ComparisonOut) -> str:
    kind = kind_of(model_id, models)
    what = KINDS[kind] if kind else "Answer" if comparison.hidden else "Model"
    name = name_of(model_id, models)
    earlier = _turns(comparison.history.get(model_id, ()), comparison)
    body = _said(answer, comparison)
    numbers = _numbers(answer) if answer is not None else ""
    return (
        f'<article class="sh-pane {kind or "unnamed"}" data-key="{esc(model_id)}">'
        f"<header><span>{what}</span><h3><bdi>{esc(name)}</bdi></h3></header>{earlier}{body}{numbers}</article>"
    )


def _said(answer: Answer | None, comparison: ComparisonOut) -> str:
    if answer is None:
        waiting = {"queued": "Waiting for a worker…", "running": "Reading the prompt…"}.get(comparison.status)
        css = "sh-answer sh-waiting" if waiting else "sh-answer"
        return f'<p class="{css}">{waiting or "No answer."}</p>'
    writes = answer.finish is None and comparison.status == "running"
    text = esc(answer.text) if answer.text.strip() else '<em class="sh-muted">(empty answer)</em>'
    if writes:
        return f'<p class="sh-answer" dir="auto" aria-busy="true">{esc(answer.text)}<i class="sh-caret"></i></p>'
    note = {"length": "Cut at the largest number of tokens.", "cancelled": "Stopped."}.get(answer.finish or "", "")
    if not note and not answer.finished and answer.finish is None:
        note = "Cut at the largest number of tokens."
    return f'<p class="sh-answer" dir="auto">{text}</p>' + (f'<p class="sh-note">{note}</p>' if note else "")


def _turns(history: Sequence[Turn], comparison: ComparisonOut) -> str:
    """What was said before, and in a conversation also the new question."""
    if not history:
        return ""
    asked = [Turn(role=message.role, content=message.content) for message in comparison.request.messages]
    said = "".join(
        f'<div class="{esc(turn.role)}"><dt>{esc(turn.role)}</dt><dd dir="auto">{esc(turn.content)}</dd></div>'
        for turn in [*history, *asked]
    )
    return f'<dl class="sh-turns">{said}</dl>'


def _numbers(answer: Answer) -> str:
    facts: list[tuple[str, str]] = [("tokens", f"{answer.tokens:,}")]
    if answer.first_token_s is not None:
        facts.append(("first token", _seconds(answer.first_token_s)))
    if answer.tokens_per_s is not None:
        facts.append(("tokens/s", number(answer.tokens_per_s)))
    if answer.seconds is not None:
        facts.append(("time", _seconds(answer.seconds)))
    if answer.parameters is not None:
        facts.append(("parameters", count(answer.parameters)))
    if answer.template is not None:
        facts.append(("template", esc(answer.template)))
    if answer.weights_sha256 is not None:
        sha256 = esc(answer.weights_sha256)
        facts.append(("weights", f'<code title="{sha256}">{sha256[:10]}</code>'))
    return '<dl class="sh-numbers">' + "".join(f"<div><dt>{k}</dt><dd>{v}</dd></div>" for k, v in facts) + "</dl>"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 60 else duration(seconds)


def _below(comparison: ComparisonOut) -> str:
    request = comparison.request
    sampling = "greedy"
    if request.temperature > 0:
        sampling = f"temperature {number(request.temperature)}, top-p {number(request.top_p)}"
    template = "each side’s own template" if request.template == "auto" else f"the {request.template} template"
    hidden = " Names and numbers are shown after the vote." if comparison.hidden else ""
    return (
        f'<p class="sh-note">The same for every side: {sampling}, seed {request.seed}, at most '
        f"{request.max_new_tokens:,} new tokens; {template}. Times are each model’s own computing time, without "
        f"loading and the other models’ turns.{hidden} "
        f'<a href="?tab=compare&amp;cmp={esc(comparison.id)}">Link to this comparison</a></p>'
    )


def history(page: Page[ComparisonLine], models: Models, *, chosen: str) -> str:
    """Earlier comparisons, the newest first, each a link that can be shared."""
    if not page.data:
        return empty("No comparisons yet.", "What you compare is kept here, and by its address.")
    rows = "".join(_line(line, models, chosen=chosen) for line in page.data)
    more = '<p class="sh-note">Older ones: GET /v1/comparisons.</p>' if page.has_more else ""
    return f'<ol class="sh-history">{rows}</ol>{more}'


def _line(line: ComparisonLine, models: Models, *, chosen: str) -> str:
    if line.blind and line.vote is None:
        who = "blind, not voted on"
    else:
        who = " · ".join(esc(label_of(model_id, models)) for model_id in line.model_ids)
    vote = f" · {VOTES[line.vote]}" if line.vote else ""
    current = ' aria-current="true"' if line.id == chosen else ""
    return (
        f'<li data-key="{esc(line.id)}"><a href="?tab=compare&amp;cmp={esc(line.id)}"{current}>'
        f"<bdi>{esc(line.prompt)}</bdi></a>"
        f"<small>{esc(line.status)} · <bdi>{who}</bdi>{vote}</small></li>"
    )
