"""The span loss: what adjacent tokens of one phrase make likely together, teacher against student (Eq. 10).

Knows pairs of positions. Does not know phrases or text: `worker.distill.spans` finds the pairs.
"""

from __future__ import annotations

from app.core.loss_config import SpanLoss
from worker.distill.losses.base import Loss, LossInputs, LossOutput
from worker.distill.losses.in_blocks import pair_distance
from worker.distill.types import Batch


class Span(Loss):
    """Distance of the Hadamard products `r_i = p_i * p_(i+1)` of the distributions that predict tokens i and i+1.

    Liu et al., arXiv 2407.10068, Eq. 10. [ours] The distance is summed over the vocabulary, not averaged (an average
    over V would switch the term off), and the sum over pairs is divided by the number of pairs (`average: pairs`), or
    by the number of spans after an average inside each span (`average: spans`).
    """

    def __init__(self, config: SpanLoss) -> None:
        super().__init__()
        self._squared = config.distance == "l2_squared"
        self._per_span = config.average == "spans"

    def forward(self, inputs: LossInputs) -> LossOutput:
        first_P, second_P = inputs.pair_index_P2.unbind(-1)
        distance_P = pair_distance(
            inputs.student_probs_MV, inputs.teacher_probs_MV, first_P, second_P, squared=self._squared
        )
        return LossOutput((distance_P / inputs.pair_span_size_P if self._per_span else distance_P).sum())

    def count(self, batch: Batch) -> int:
        return batch.num_spans if self._per_span else batch.num_pairs
