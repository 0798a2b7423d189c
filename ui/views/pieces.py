"""Small pieces of HTML that several views share. Arguments are HTML already: callers escape what comes from outside."""

from __future__ import annotations

from collections.abc import Iterable


def empty(title: str, sentence: str) -> str:
    """In place of something that is not there yet: what is missing, and what brings it."""
    return f'<div class="sh-empty"><strong>{title}</strong><p>{sentence}</p></div>'


def callout(kind: str, title: str, *body: str) -> str:
    """A framed note. `kind` is error, warning or good; errors are announced to screen readers at once."""
    role = "alert" if kind == "error" else "status"
    return f'<div class="sh-callout {kind}" role="{role}"><b>{title}</b>{"".join(body)}</div>'


def listed(items: Iterable[str]) -> str:
    """A bullet list; nothing at all without items."""
    rows = "".join(f"<li>{item}</li>" for item in items)
    return f"<ul>{rows}</ul>" if rows else ""


def tiles(facts: Iterable[tuple[str, str, str]], *, css: str = "") -> str:
    """Numbers in a row: (name, value, small note)."""
    cells = "".join(
        f'<div class="sh-tile"><span>{name}</span><b>{value}</b><small>{note}</small></div>'
        for name, value, note in facts
    )
    return f'<div class="sh-tiles {css}">{cells}</div>'


def bar(share: float, *, css: str = "") -> str:
    """A filled line; beside a number that says the same, so hidden from screen readers."""
    width = 100 * min(1.0, max(0.0, share))
    return f'<span class="sh-bar {css}" aria-hidden="true"><i style="width:{width:.1f}%"></i></span>'
