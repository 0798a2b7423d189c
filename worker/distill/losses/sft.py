"""Cross-entropy on the labels.

Knows which positions belong to ground-truth rows. Does not read the teacher.
"""

from __future__ import annotations

from typing import ClassVar

from app.core.loss_config import SftLoss
from worker.distill.losses.base import Loss, LossInputs, LossOutput
from worker.distill.types import Batch


class Sft(Loss):
    """`-log q(label)`, over ground-truth rows or over all rows."""

    needs_teacher: ClassVar[bool] = False

    def __init__(self, config: SftLoss) -> None:
        super().__init__()
        self._every_row = config.rows == "all"

    def forward(self, inputs: LossInputs) -> LossOutput:
        nll_M = -inputs.student_log_probs_MV.gather(-1, inputs.labels_M[:, None])[:, 0]
        return LossOutput(inputs.total(nll_M if self._every_row else nll_M * inputs.is_ground_truth_M))

    def count(self, batch: Batch) -> int:
        return batch.num_positions if self._every_row else batch.num_ground_truth_positions
