"""Values as people read them, and the one way that text enters HTML.

Knows numbers, times and escaping. Does not know which page shows them. Everything that comes from outside (names,
paths, prompts, model output) passes through `esc`; nothing is ever rendered as Markdown.
"""

from __future__ import annotations

import html
import math
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any

MISSING = "–"


def esc(value: object) -> str:
    """`value` as HTML text, safe in element content and in quoted attributes. Lone surrogates become '?'. A carriage
    return is written as a reference, since browsers read a plain one as a line feed."""
    text = str(value).encode("utf-8", "replace").decode("utf-8")
    return html.escape(text, quote=True).replace("\r", "&#13;")


def visible(token: str) -> str:
    """A token's text with its blanks and line breaks as signs; an empty one (part of a longer character) is ∅."""
    return token.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣") or "∅"


def number(value: float | None) -> str:
    """Three or four significant digits, an exponent only where it reads better: 1,234 · 81.2 · 0.0314 · 5e-05."""
    if value is None or not math.isfinite(value):
        return MISSING if value is None else str(value)
    size = abs(value)
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 1:
        return f"{value:.2f}"
    return f"{value:.3g}"


def count(value: int | None) -> str:
    """134.5M, 1.1B, 320K: how many parameters or tokens."""
    if value is None:
        return MISSING
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if value >= limit:
            return f"{value / limit:.1f}".removesuffix(".0") + unit
    return str(value)


def size(num_bytes: float) -> str:
    """Bytes in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit in ("B", "KiB") else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"


def duration(seconds: float | None) -> str:
    """The two largest units: 45 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return _two_units(whole, 60, "min", 1, "s")
    if whole < 86400:
        return _two_units(whole, 3600, "h", 60, "min")
    return _two_units(whole, 86400, "d", 3600, "h")


def _two_units(whole: int, large: int, large_name: str, small: int, small_name: str) -> str:
    rest = whole % large // small
    return f"{whole // large} {large_name}" + (f" {rest} {small_name}" if rest else "")


def age(moment: datetime, now: datetime) -> str:
    """How long ago, in one unit, so that the text seldom changes."""
    seconds = max(0.0, (aware(now) - aware(moment)).total_seconds())
    for limit, unit, name in ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds // unit)} {name} ago"
    return f"{int(seconds // 86400)} d ago"


def aware(moment: datetime) -> datetime:
    """The API speaks UTC; a time without zone is one of its."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def model_name(source: str) -> str:
    """The last part of a hub id or path: what people call the model."""
    return PurePosixPath(source.replace("\\", "/").rstrip("/")).name or source


def student_name(student: dict[str, Any] | Any) -> str:
    """A student's description in a stored job, in a few words."""
    if student.get("kind") == "from_teacher":
        return f"{student.get('layers')} layers"
    return model_name(str(student.get("model", MISSING)))
