"""Shapes of asking models that carry rules of their own."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from app.core.compare_schemas import BatchIn, ComparisonIn

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
        {"template": "html"},
        {"colour": "red"},
    ],
    ids=str,
)
def test_comparisons_refuse_nonsense(changes: dict[str, Any]) -> None:
    ComparisonIn.model_validate({"model_ids": ["m"], "messages": MESSAGES})
    with pytest.raises(ValidationError):
        ComparisonIn.model_validate({"model_ids": ["m"], "messages": MESSAGES, **changes})


def test_a_batch_is_bounded() -> None:
    BatchIn.model_validate({"dataset_id": "ds_1", "model_ids": ["m"], "limit": 1000})
    with pytest.raises(ValidationError):
        BatchIn.model_validate({"dataset_id": "ds_1", "model_ids": ["m"], "limit": 1001})
