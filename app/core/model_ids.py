"""What an answer's author is called: a model's id, or a checkpoint of a job, written `job_…@20` after step 20.

Knows spelling. Does not know whether such a model or checkpoint is there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_FORM = re.compile(r"(job_[0-9a-z]{1,40})@(0|[1-9][0-9]{0,8})")


@dataclass(frozen=True)
class CheckpointId:
    """The student of `job_id` as it was after `step` steps of its training."""

    job_id: str
    step: int

    def __str__(self) -> str:
        return f"{self.job_id}@{self.step}"


def checkpoint_id(model_id: str) -> CheckpointId | None:
    """None for what is not written as a checkpoint is: then it is a model's id."""
    found = _FORM.fullmatch(model_id)
    return CheckpointId(found[1], int(found[2])) if found else None
