from __future__ import annotations

from datetime import UTC, datetime

from app.core.schemas import DatasetOut, DryRunOut, RowProblem
from ui.views.submission import check_result, dataset_result


def test_check_shows_sizes_memory_and_warnings() -> None:
    memory = {"weights": 2**30, "optimizer": 2**29, "total": 2**30 + 2**29}
    found = DryRunOut(
        config={},
        teacher_parameters=134_000_000,
        student_parameters=67_000_000,
        memory_bytes=memory,
        seconds=7300.0,
        seconds_basis="A <guess>.",
        disk_bytes={"student": 2**29, "total": 2**30},
        warnings=["<slow>"],
    )
    html = check_result(found)
    assert "134M" in html
    assert "50% of the teacher" in html
    assert "about 1.5 GiB" in html
    assert "width:50.0%" in html
    assert "<b>2 h 1 min</b>" in html
    assert "A &lt;guess&gt;." in html
    assert "<b>1.0 GiB</b>" in html
    assert "&lt;slow&gt;" in html
    assert "Warnings" not in check_result(found.model_copy(update={"warnings": []}))


def test_data_set_shows_format_and_the_rows_left_out() -> None:
    problems = [RowProblem(row=i, message="<empty>") for i in range(1, 12)]
    found = DatasetOut(
        id="ds_1",
        name="<x>.csv",
        format="alpaca",
        rows=20,
        rows_with_response=5,
        problems=problems,
        sha256="",
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    html = dataset_result(found)
    assert "&lt;x&gt;.csv" in html
    assert "20 rows, 5 with a response" in html
    assert "Alpaca" in html
    assert "row 8: &lt;empty&gt;" in html
    assert "row 9" not in html
    assert "and 3 more" in html
    assert "Left out" not in dataset_result(found.model_copy(update={"problems": []}))
