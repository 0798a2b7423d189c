"""Rows from a data set's file, in which order they are shown, and how they leave as CSV."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.batch_files import as_csv, ordered, read_rows
from app.core.compare_schemas import BatchRow, RowScore
from app.core.errors import NotFound
from app.core.storage import ArtifactStore


def row(number: int, *scores: tuple[str, float | None, float | None]) -> BatchRow:
    """Scores are (model, KL, ROUGE-L)."""
    return BatchRow(
        row=number,
        comparison_id=f"cmp_{number}",
        status="succeeded" if scores else "queued",
        prompt="p",
        reference=None,
        answers=(),
        scores=[RowScore(model_id=one, kl=kl, rouge_l=rouge_l, tokens=1) for one, kl, rouge_l in scores],
        verdicts=(),
        error=None,
    )


def test_the_worst_student_decides_and_the_teacher_does_not() -> None:
    rows = [
        row(1),
        row(2, ("teacher", None, 0.0), ("student", 1.0, 0.9)),
        row(3, ("teacher", None, 1.0), ("student", 0.5, 0.2), ("other", 3.0, 0.8)),
    ]
    assert [one.row for one in ordered(rows, "row")] == [1, 2, 3]
    assert [one.row for one in ordered(rows, "kl")] == [3, 2, 1]
    assert [one.row for one in ordered(rows, "rouge_l")] == [3, 2, 1]


def test_without_a_teacher_every_model_counts() -> None:
    rows = [row(1, ("a", None, 0.9)), row(2, ("a", None, 0.1))]
    assert [one.row for one in ordered(rows, "rouge_l")] == [2, 1]


def test_rows_are_read_up_to_the_limit(tmp_path: Path) -> None:
    store = ArtifactStore(f"file://{tmp_path}")
    lines = [json.dumps({"messages": [{"role": "user", "content": str(i)}], "response": ""}) for i in range(5)]
    with store.open("rows.jsonl", "wb") as file:
        file.write("\n\n".join(lines).encode())
    found = read_rows(store, "rows.jsonl", limit=3)
    assert [one.messages[0]["content"] for one in found] == ["0", "1", "2"]
    assert found[0].reference is None  # an empty response is none
    with pytest.raises(NotFound):
        read_rows(store, "gone.jsonl", limit=3)


def test_a_table_without_answers_has_its_head() -> None:
    (head,) = as_csv([row(1)])
    assert head.startswith("row,status,prompt")
