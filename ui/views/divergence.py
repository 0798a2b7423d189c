"""Where two models part on one answer: its tokens tinted and underlined by KL, and a panel with both top-5.

Knows Divergence. The panel is filled by divergence.js from the data here, with textContent alone: tokens are text.
"""

from __future__ import annotations

import json

from app.core.compare_schemas import Divergence, DivergenceOut, TokenReading
from ui.text import esc, number
from ui.views.pieces import callout, empty

# Nats; a token's step tints it and thickens its underline. ln 2 = 0.69: the models share half of their mass or so.
STEPS = (0.1, 0.5, 1.0, 2.0)
EMPTY = empty(
    "Not read yet.",
    "Choose whose answer is read and by which two models, and press Read: both then score the same text.",
)
WAITING = '<p class="sh-note sh-waiting" role="status">Both models read the answer…</p>'


def view(found: DivergenceOut) -> str:
    if found.error:
        title = f"The answer could not be read: <code>{esc(found.error.code)}</code>"
        return callout("error", title, f"<p>{esc(found.error.message)}</p>")
    if found.result is None:
        return WAITING if found.status in ("queued", "running") else callout("warning", "Stopped.")
    return _reading(found.result)


def _reading(result: Divergence) -> str:
    if not result.tokens:
        return empty("Nothing to read.", "This answer has no tokens.")
    tokens = "".join(_token(i, one, result) for i, one in enumerate(result.tokens))
    data = esc(json.dumps([_detail(one) for one in result.tokens], separators=(",", ":")))
    jumps = f'<button type="button" class="sh-do" data-jump="{result.largest}">Jump to the largest KL</button>'
    if result.error_position is not None:
        jumps += (
            f'<button type="button" class="sh-do" data-jump="{result.error_position}">Jump to SCRG’s error</button>'
        )
    error = "SCRG would correct nothing here: no token differs from the teacher’s"
    if result.error_position is not None:
        error = f"SCRG’s error, token {result.error_position + 1:,}, is {esc(result.rule)}; it is framed"
    return (
        f'<div class="sh-reading" data-tokens="{data}"><div class="sh-jumps">{jumps}{_legend()}</div>'
        f'<div class="sh-tokens" role="listbox" aria-label="Tokens of the answer, by KL" dir="auto">{tokens}</div>'
        '<div class="sh-detail" role="status" aria-live="polite"><p class="sh-note">Point at a token, tap it, or move '
        "with the arrow keys: both models’ five most probable tokens appear here.</p></div>"
        f'<p class="sh-note">Mean KL(teacher‖student) {number(result.mean_kl)} nats per token, over '
        f"{len(result.tokens):,} tokens. {error}. Weights: teacher "
        f"<code>{esc(result.teacher_weights_sha256[:10])}</code>, "
        f"student <code>{esc(result.student_weights_sha256[:10])}</code>.</p></div>"
    )


def _token(i: int, one: TokenReading, result: Divergence) -> str:
    step = sum(one.kl >= limit for limit in STEPS)
    is_error = i == result.error_position
    css = f"k{step}" + (" scrg" if is_error else "")
    label = f"{one.text.strip() or one.token}, KL {number(one.kl)}{', SCRG’s error' if is_error else ''}"
    # A token without text of its own (part of a character, end of text) shows its spelling, which is not copied.
    shown = "" if one.text else f' data-spelling="{esc(one.token)}"'
    tab = 0 if i == 0 else -1
    return (
        f'<span role="option" class="{css}" data-i="{i}" tabindex="{tab}" aria-selected="false" '
        f'aria-label="{esc(label)}"{shown}>{esc(one.text)}</span>'
    )


def _detail(one: TokenReading) -> list[object]:
    """What the panel needs, short: token, KL, both probabilities of it, the teacher's token, both top-5."""
    return [
        one.text or one.token,
        round(one.kl, 4),
        one.teacher_probability,
        one.student_probability,
        one.teacher_token,
        one.mismatch,
        [[candidate.text, candidate.probability] for candidate in one.teacher_top],
        [[candidate.text, candidate.probability] for candidate in one.student_top],
    ]


def _legend() -> str:
    words = [f"< {STEPS[0]:g}", *(f"≥ {limit:g}" for limit in STEPS)]
    keys = "".join(f'<span class="k{step}">{esc(word)}</span>' for step, word in enumerate(words))
    return f'<span class="sh-legend">KL in nats: {keys}</span>'
