from __future__ import annotations

import pytest

from app.core.ids import new_id
from app.core.model_ids import CheckpointId, checkpoint_id


def test_a_checkpoint_is_written_and_read_back() -> None:
    named = CheckpointId(new_id("job"), 1200)
    assert checkpoint_id(str(named)) == named
    assert len(str(CheckpointId(new_id("job"), 999_999_999))) <= 64  # what the API takes


@pytest.mark.parametrize(
    "text", ["mdl_1", "job_1", "job_1@", "job_1@01", "job_1@-1", "job_1@1e3", "mdl_1@3", "job_1@3\n", "job_../x@3", ""]
)
def test_what_is_no_checkpoint(text: str) -> None:
    assert checkpoint_id(text) is None
