"""Samples and the event log as HTML: what the student says over time, what SCRG corrected, what happened when.

Knows SampleDrawn, Correction and log lines. Model text is escaped, keeps its line breaks and sets its own direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC

from app.core.events import Correction, SampleDrawn
from ui.event_view import Line
from ui.text import aware, esc, number, visible
from ui.views.pieces import empty

NO_SAMPLES = empty(
    "No samples yet.",
    "The student answers a few held-out prompts at every evaluation; the answers appear here, step by step.",
)
NO_CORRECTIONS = empty(
    "No corrections yet.", "They appear when a step trains on fresh samples of the student and SCRG is on."
)
NO_LINES = empty("Nothing has happened yet.", "A worker has not picked this job up.")


def answers(samples: Sequence[SampleDrawn]) -> str:
    """One card per prompt: its reference, then the student's answers, the newest first."""
    if not samples:
        return NO_SAMPLES
    by_prompt: dict[str, list[SampleDrawn]] = {}
    for sample in samples:
        by_prompt.setdefault(sample.prompt, []).append(sample)
    return "".join(_prompt_card(prompt, drawn) for prompt, drawn in by_prompt.items())


def _prompt_card(prompt: str, drawn: Sequence[SampleDrawn]) -> str:
    rows = [f'<dt>step {one.step:,}</dt><dd dir="auto">{_said(one.text)}</dd>' for one in reversed(drawn)]
    reference = next((one.reference for one in drawn if one.reference), None)
    if reference:
        rows.append(f'<dt>reference</dt><dd dir="auto" class="sh-reference">{_said(reference)}</dd>')
    return f'<article class="sh-sample"><h4 dir="auto">{esc(prompt)}</h4><dl>{"".join(rows)}</dl></article>'


def _said(text: str) -> str:
    return esc(text) if text.strip() else '<em class="sh-muted">(empty answer)</em>'


def corrections(examples: Sequence[Correction]) -> str:
    """The newest first: the student's token struck through, the teacher's in its place, the new tail tinted."""
    if not examples:
        return NO_CORRECTIONS
    return "".join(_correction_card(example) for example in reversed(examples))


def _correction_card(one: Correction) -> str:
    where = f"step {one.step:,} · error at token {one.error_position + 1:,} · KL {number(one.kl)}"
    corrected = (
        f'{esc(one.before)}<del title="the student’s token">{_token(one.student_token)}</del>'
        f'<ins title="the teacher’s token">{_token(one.teacher_token)}</ins>'
        f'<span class="sh-tail" title="written again by the student">{esc(one.regenerated)}</span>'
    )
    dropped = ""
    if one.dropped.strip():
        summary = "<summary>What the student had written instead</summary>"
        dropped = f'<details>{summary}<p dir="auto">{esc(one.dropped)}</p></details>'
    return (
        f'<article class="sh-sample"><h4 dir="auto">{esc(one.prompt)}</h4><p class="sh-note">{where}</p>'
        f'<p class="sh-corrected" dir="auto">{corrected}</p>{dropped}</article>'
    )


def _token(token: str) -> str:
    """A token of blanks or line breaks alone would be invisible."""
    return esc(token if token.strip() else visible(token))


def event_log(lines: Sequence[Line]) -> str:
    """The newest first, times in UTC."""
    if not lines:
        return NO_LINES
    rows = "".join(_log_line(line) for line in reversed(lines))
    return (
        f'<ol class="sh-log" tabindex="0" aria-label="Event log, newest first">{rows}</ol>'
        '<p class="sh-note">Times are UTC.</p>'
    )


def _log_line(line: Line) -> str:
    at = f"{aware(line.at).astimezone(UTC):%H:%M:%S}"
    return f'<li class="{esc(line.kind)}"><time>{at}</time><span dir="auto">{esc(line.text)}</span></li>'
