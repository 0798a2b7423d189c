"""A data set's first rows, one row's exact tokens with the loss mask, and how long rows are, as HTML.

Knows the preview's shapes. Text is escaped, keeps its own direction, and blanks in tokens are made visible. What the
losses count is underlined and said in words too, so colour is not the only sign.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.core.preview_schemas import DatasetRow, Lengths, PreviewOut, TokenOut
from ui.text import esc, visible
from ui.views.pieces import callout

SHOWN_TOKENS = 600
SHOWN_TEXT = 400
NAMED_ROWS = 5


def rows_preview(rows: Sequence[DatasetRow]) -> str:
    """The first rows as they were understood: who says what, and what is to be answered."""
    cards = "".join(_row(number, row) for number, row in enumerate(rows, start=1))
    return (
        f'<details class="sh-rows" data-key="rows"><summary>First {len(rows)} rows, as read</summary>{cards}</details>'
    )


def _row(number: int, row: DatasetRow) -> str:
    turns = [(message.get("role", ""), message.get("content", "")) for message in row.messages]
    turns.append(("response", row.response if row.response is not None else "(none in the data)"))
    turns += [("also right", text) for text in row.references]
    said = "".join(f'<dt>{esc(role)}</dt><dd dir="auto">{_short(text)}</dd>' for role, text in turns)
    return f'<article class="sh-sample"><h4>Row {number}</h4><dl>{said}</dl></article>'


def _short(text: str) -> str:
    return esc(text if len(text) <= SHOWN_TEXT else text[:SHOWN_TEXT] + "…")


def tokens_preview(found: PreviewOut, *, max_prompt_tokens: int, max_response_tokens: int) -> str:
    """Row `found.row` after the template, token by token, then the lengths of all rows read."""
    counted = sum(token.in_loss for token in found.tokens)
    read = len(found.tokens) - counted
    pieces = "".join(_token(token) for token in found.tokens[:SHOWN_TOKENS])
    more = len(found.tokens) - SHOWN_TOKENS
    rest = f'<p class="sh-note">and {more:,} more tokens</p>' if more > 0 else ""
    answer = (
        f"{counted:,} underlined ones carry loss"
        if counted
        else "no response is in the data to use, so none carry loss yet"
    )
    return (
        f"<h4>Row {found.row} as the model reads it</h4>"
        f'<p class="sh-note">{read:,} prompt tokens are only read; {answer}. The number below a token is its id.</p>'
        f'<div class="sh-tokens" tabindex="0" role="region" aria-label="Tokens of row {found.row}">{pieces}</div>{rest}'
        f"{_lengths('Prompts', found.prompt_lengths)}"
        f"{_lengths('Responses', found.response_lengths) if found.response_lengths else ''}"
        f'<p class="sh-note">Lengths in tokens of the first {found.rows_read:,} rows.</p>'
        f"{_problems(found, max_prompt_tokens, max_response_tokens)}"
    )


def _token(token: TokenOut) -> str:
    kind = "loss" if token.in_loss else "read"
    said = "in the loss" if token.in_loss else "only read"
    return (
        f'<span class="sh-token {kind}" title="id {token.id}, {said}"><bdi>{esc(visible(token.text))}</bdi>'
        f"<small>{token.id}</small></span>"
    )


def _lengths(name: str, lengths: Lengths) -> str:
    """A small histogram; its numbers are in words as well."""
    most = max(lengths.counts) or 1
    bars = "".join(
        f'<i style="height:{100 * count / most:.0f}%" title="{low:,} to {high - 1:,} tokens: {count:,} rows"></i>'
        for low, high, count in zip(lengths.edges, lengths.edges[1:], lengths.counts, strict=False)
    )
    words = f"{name}: {lengths.shortest:,} to {lengths.longest:,} tokens, median {lengths.median:,}"
    return (
        f'<figure class="sh-histogram"><figcaption>{words}</figcaption><div aria-hidden="true">{bars}</div>'
        f'<div class="sh-axis" aria-hidden="true"><span>0</span><span>{lengths.edges[-1]:,}</span></div></figure>'
    )


def _problems(found: PreviewOut, max_prompt_tokens: int, max_response_tokens: int) -> str:
    notes = []
    if found.too_long_count:
        rows = ", ".join(f"{row:,}" for row in found.too_long[:NAMED_ROWS])
        more = ", …" if found.too_long_count > NAMED_ROWS else ""
        notes.append(
            f"<p>{found.too_long_count:,} prompts are longer than data.max_prompt_tokens ({max_prompt_tokens:,}): the "
            f"run would refuse them. Rows {rows}{more}. Shorten them or raise the limit.</p>"
        )
    if found.cut_count:
        notes.append(
            f"<p>{found.cut_count:,} responses are longer than data.max_response_tokens ({max_response_tokens:,}): "
            "they are cut there, and their ends are not learned.</p>"
        )
    return callout("warning", "Lengths to look at", *notes) if notes else ""
