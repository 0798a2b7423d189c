"""REST shapes that carry rules of their own."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from app.core.compare_schemas import ComparisonIn
from app.core.schemas import JobIn

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    "changes",
    [
        {"model_ids": []},
        {"model_ids": ["m"] * 5},
        {"messages": []},
        {"messages": [{"role": "robot", "content": "x"}]},
        {"messages": [{"role": "user", "content": ""}]},
        {"temperature": -1},
        {"top_p": 0},
        {"max_new_tokens": 0},
        {"colour": "red"},
    ],
    ids=str,
)
def test_comparisons_refuse_nonsense(changes: dict[str, Any]) -> None:
    ComparisonIn.model_validate({"model_ids": ["m"], "messages": MESSAGES})
    with pytest.raises(ValidationError):
        ComparisonIn.model_validate({"model_ids": ["m"], "messages": MESSAGES, **changes})


def test_a_job_needs_a_name() -> None:
    with pytest.raises(ValidationError) as caught:
        JobIn.model_validate({"name": "", "config": {}})
    assert ("name",) in [error["loc"] for error in caught.value.errors()]
