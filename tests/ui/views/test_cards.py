from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from app.core.schemas import ModelOut
from tests.ui.seed import HOSTILE
from ui.text import esc
from ui.views.cards import EMPTY, cards


def model(**changes: Any) -> ModelOut:
    values: dict[str, Any] = {
        "id": "mdl_1",
        "kind": "student",
        "name": HOSTILE,
        "job_id": "job_1",
        "source": "students/mdl_1",
        "parameters": 50_000_000,
        "weights_sha256": "ab" * 32,
        "card": {
            "recipe": "mgsr",
            "data": {"kind": "dataset", "dataset_id": "ds_<b>"},
            "metrics": {
                "before/eval/kl_ts": 0.9,
                "after/eval/kl_ts": 0.4,
                "before/eval/rouge_l": 0.3,
                "after/eval/rouge_l": 0.2,
            },
        },
        "created_at": datetime(2026, 1, 2, tzinfo=UTC),
        "bytes": 3 * 2**20,
        "teacher_id": "mdl_t",
    }
    return ModelOut.model_validate(values | changes)


TEACHER = model(id="mdl_t", kind="teacher", name="some/Teacher-135M", parameters=100_000_000, job_id=None, card={})


def test_a_card_says_where_it_comes_from_and_what_became_better() -> None:
    shown = cards([model(tokens_per_s=21.5)], {"mdl_t": TEACHER}, {"ds_<b>": "<i>rows</i>"})
    for said in ("Teacher-135M", "2.0×", "3.0 MiB", "21.5 tokens/s", "abababab", "50M", "mgsr", "&lt;i&gt;rows"):
        assert said in shown
    assert '<td class="better">better</td>' in shown
    assert '<td class="worse">worse</td>' in shown


def test_names_are_text_in_content_and_in_attributes() -> None:
    shown = cards([model()], {}, {})
    assert "<script" not in shown
    assert "ds_&lt;b&gt;" in shown
    assert shown.count(f'data-name="{esc(HOSTILE)}"') == 3


def test_a_student_without_job_or_numbers() -> None:
    shown = cards([model(job_id=None, card={}, parameters=None, bytes=None)], {}, {})
    assert "now deleted" in shown
    assert "not asked yet" in shown
    assert cards([], {}, {}) == EMPTY
