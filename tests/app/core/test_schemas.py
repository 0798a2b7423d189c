"""REST shapes that carry rules of their own."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from app.core.schemas import JobIn


def test_a_job_needs_a_name() -> None:
    with pytest.raises(ValidationError) as caught:
        JobIn.model_validate({"name": "", "config": {}})
    assert ("name",) in [error["loc"] for error in caught.value.errors()]
