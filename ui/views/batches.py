"""A batch as HTML: how far it is, its averages per model, and its rows with scores.

Knows BatchOut, BatchRow and ModelOut. Prompts and answers are text.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from app.core.compare_schemas import Answer, BatchOut, BatchRow, RowScore
from app.core.schemas import Page
from ui.downloads import batch_url
from ui.model_names import Models, label_of
from ui.text import esc, number
from ui.views.pieces import bar, empty

EMPTY = empty(
    "No batch chosen.",
    "Choose a data set and two to four models: every row is asked, and the answers are measured.",
)
VERDICTS = {"first": "first is better", "other": "this one is better", "tie": "tie", "unclear": "unclear"}


def head(batch: BatchOut, models: Models, rows: Sequence[BatchRow]) -> str:
    """Status, progress, averages over `rows`, and the downloads."""
    judged = f" · {batch.judged:,} judged" if batch.request.judge else ""
    failed = f" · {batch.failed:,} failed" if batch.failed else ""
    links = " ".join(
        f'<a class="sh-do" href="{esc(batch_url(batch.id, kind))}" download>{kind.upper()}</a>'
        for kind in ("csv", "jsonl")
    )
    return (
        f'<div class="sh-head sh-batch"><div class="sh-title"><h3>{batch.rows:,} rows</h3>'
        f'<span class="sh-chip {esc(batch.status)}">{esc(batch.status)}</span>'
        f'<span class="sh-links">{links}</span></div>'
        f"<p>{batch.done:,} of {batch.rows:,} answered{failed}{judged}</p>"
        f"{bar(batch.done / max(batch.rows, 1), css=batch.status)}{_averages(batch, models, rows)}</div>"
    )


def _averages(batch: BatchOut, models: Models, rows: Sequence[BatchRow]) -> str:
    if not any(row.scores for row in rows):
        return ""
    names = ("Model", "ROUGE-L", "KL(T‖S)", "Tokens")
    body = ""
    for model_id in batch.request.model_ids:
        scores = [score for row in rows for score in row.scores if score.model_id == model_id]
        cells = (_mean(score.rouge_l for score in scores), _mean(score.kl for score in scores))
        tokens = _mean(float(score.tokens) for score in scores)
        label = esc(label_of(model_id, models))
        body += (
            f'<tr><th scope="row"><bdi>{label}</bdi></th>'
            + "".join(f"<td>{c}</td>" for c in (*cells, tokens))
            + "</tr>"
        )
    heads = "".join(f'<th scope="col">{name}</th>' for name in names)
    return _table("Averages by model", heads, body)


def _mean(values: object) -> str:
    found = [value for value in values if value is not None]  # type: ignore[attr-defined]
    return number(fmean(found)) if found else "–"


def table(page: Page[BatchRow], models: Models) -> str:
    """One row per prompt and model, the scores beside the answer."""
    if not page.data:
        return ""
    heads = "".join(
        f'<th scope="col">{name}</th>' for name in ("Row", "Prompt", "Model", "Answer", "ROUGE-L", "KL", "Tokens")
    )
    body = "".join(_rows(row, models) for row in page.data)
    more = '<p class="sh-note">The first rows in this order; the files have all.</p>' if page.has_more else ""
    return _table("Rows", heads, body) + more


def _table(label: str, heads: str, body: str) -> str:
    return (
        f'<div class="sh-wide" tabindex="0" role="region" aria-label="{label}"><table class="sh-table"><thead>'
        f"<tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _rows(row: BatchRow, models: Models) -> str:
    reference = (
        f'<details><summary>reference</summary><p dir="auto">{esc(row.reference)}</p></details>'
        if row.reference
        else ""
    )
    height = max(len(row.answers), 1)
    first = (
        f'<td rowspan="{height}" data-name="Row">{row.row}</td><th scope="rowgroup" rowspan="{height}" class="c-text" '
        f'dir="auto">{esc(row.prompt)}{reference}</th>'
    )
    if not row.answers:
        told = f"{row.status}: {row.error.message}" if row.error else row.status
        return f'<tr data-key="{esc(row.comparison_id)}">{first}<td colspan="5">{esc(told)}</td></tr>'
    scores = {score.model_id: score for score in row.scores}
    verdicts = {verdict.model_id: VERDICTS[verdict.outcome] for verdict in row.verdicts}
    lines = [_answer(one, models, scores.get(one.model_id), verdicts.get(one.model_id)) for one in row.answers]
    return "".join(
        f'<tr data-key="{esc(row.comparison_id)}-{i}">{first if i == 0 else ""}{line}</tr>'
        for i, line in enumerate(lines)
    )


def _answer(answer: Answer, models: Models, score: RowScore | None, verdict: str | None) -> str:
    judged = f"<small>judge: {esc(verdict)}</small>" if verdict else ""
    numbers = (number(score.rouge_l), number(score.kl)) if score else ("–", "–")
    return (
        f'<td class="c-model"><bdi>{esc(label_of(answer.model_id, models))}</bdi>{judged}</td>'
        f'<td class="c-text" dir="auto">{esc(answer.text)}</td><td data-name="ROUGE-L">{numbers[0]}</td>'
        f'<td data-name="KL">{numbers[1]}</td><td data-name="Tokens">{answer.tokens:,}</td>'
    )


def listed(page: Page[BatchOut], *, chosen: str) -> str:
    """Earlier batches, the newest first."""
    if not page.data:
        return ""
    rows = "".join(
        f'<li data-key="{esc(one.id)}"><a href="?tab=compare&amp;batch={esc(one.id)}"'
        f"{' aria-current=true' if one.id == chosen else ''}>{one.rows:,} rows, {len(one.request.model_ids)} models</a>"
        f"<small>{esc(one.status)} · {one.created_at:%Y-%m-%d %H:%M} UTC</small></li>"
        for one in page.data
    )
    return f'<h3>Earlier batches</h3><ol class="sh-history">{rows}</ol>'
