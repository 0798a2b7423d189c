"""Cards of distilled students: where they come from, what became better, and what can be done with them.

Knows ModelOut. A student's name is the user's, and text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.core.schemas import ModelOut
from ui.downloads import model_url
from ui.text import MISSING, count, esc, model_name, number, size
from ui.views.pieces import empty

EMPTY = empty(
    "No students yet.", "A job that has succeeded leaves one here; start it under <a href='?tab=submit'>New job</a>."
)
LOADING = empty("Students are on their way.", "They are read when this tab opens.")
# Name in the card, and whether less is better.
METRICS = {
    "eval/kl_ts": ("KL(teacher‖student)", True),
    "eval/top1_agreement": ("top-1 agreement", False),
    "eval/rouge_l": ("ROUGE-L", False),
    "eval/loss": ("held-out loss", True),
}


def cards(students: Sequence[ModelOut], teachers: Mapping[str, ModelOut], datasets: Mapping[str, str]) -> str:
    """`datasets` has names by id; one that is not there is shown by its id."""
    if not students:
        return EMPTY
    shown = "".join(_card(one, teachers.get(one.teacher_id or ""), datasets) for one in students)
    return f'<div class="sh-students">{shown}</div>'


def _card(student: ModelOut, teacher: ModelOut | None, datasets: Mapping[str, str]) -> str:
    facts = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in _facts(student, teacher, datasets))
    return (
        f'<article class="sh-card sh-student" data-key="{esc(student.id)}"><h3 dir="auto">{esc(student.name)}</h3>'
        f"<p>{_lineage(student, teacher)}</p><dl>{facts}</dl>{_metrics(student.card.get('metrics', {}))}"
        f'<div class="sh-actions">{_actions(student)}</div></article>'
    )


def _lineage(student: ModelOut, teacher: ModelOut | None) -> str:
    source = teacher.name if teacher else str(student.card.get("teacher", MISSING))
    job = (
        f'<a href="?tab=progress&amp;job={esc(student.job_id)}">its job</a>'
        if student.job_id
        else "its job, now deleted"
    )
    return f"Distilled from <bdi>{esc(model_name(source))}</bdi> by {job}"


def _facts(student: ModelOut, teacher: ModelOut | None, datasets: Mapping[str, str]) -> list[tuple[str, str]]:
    card = student.card
    data: Mapping[str, Any] = card.get("data", {})
    source = data.get("dataset_id") or data.get("path") or MISSING
    smaller = MISSING
    if teacher and teacher.parameters and student.parameters:
        smaller = f"{teacher.parameters / student.parameters:.1f}×"
    return [
        ("recipe", esc(card.get("recipe", MISSING))),
        ("parameters", count(student.parameters)),
        ("compression", smaller),
        ("size", size(student.bytes) if student.bytes is not None else MISSING),
        ("speed", f"{number(student.tokens_per_s)} tokens/s" if student.tokens_per_s else "not asked yet"),
        ("data", f"<bdi>{esc(datasets.get(source, source))}</bdi>"),
        ("weights", f"<code>{esc((student.weights_sha256 or MISSING)[:10])}</code>"),
        ("id", f"<code>{esc(student.id)}</code>"),
    ]


def _metrics(metrics: Mapping[str, float]) -> str:
    """Held-out numbers before and after training; whether a change is good is said in words."""
    rows = ""
    for name, (label, less_is_better) in METRICS.items():
        before, after = metrics.get(f"before/{name}"), metrics.get(f"after/{name}")
        if before is None or after is None:
            continue
        verdict = "same" if after == before else "better" if (after < before) == less_is_better else "worse"
        rows += (
            f'<tr><th scope="row">{label}</th><td>{number(before)}</td><td>{number(after)}</td>'
            f'<td class="{verdict}">{verdict}</td></tr>'
        )
    if not rows:
        return ""
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("Held out", "before", "after", ""))
    heads = heads.replace('<th scope="col"></th>', "<td></td>")
    return f'<table class="sh-table"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>'


def _actions(student: ModelOut) -> str:
    about = f'data-model="{esc(student.id)}" data-name="{esc(student.name)}"'

    def button(action: str, label: str, css: str = "") -> str:
        named = f'aria-label="{esc(f"{label}: {student.name}")}"'
        return f'<button type="button" class="sh-do {css}" data-do="{action}" {about} {named}>{label}</button>'

    named = f'aria-label="{esc(f"Download: {student.name}")}"'
    download = f'<a class="sh-do" href="{esc(model_url(student.id))}" download {named}>Download</a>'
    return (
        button("compare", "Compare with its teacher", "primary")
        + download
        + button("rename", "Rename")
        + button("delete", "Delete")
    )
