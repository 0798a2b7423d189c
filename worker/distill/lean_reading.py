"""One lean pass over whole sequences, for whoever only reads: no padding goes through the products, nothing is kept.

Knows micro-batches and lean bodies. Does not know what the states are for; what is trained needs the model's own pass.
"""

from __future__ import annotations

import torch
from torch import Tensor

from worker.distill.evaluate import response_states
from worker.distill.lean import LeanBody, many_tokens
from worker.distill.models import SplitModel
from worker.distill.types import Batch


@torch.no_grad()
def read_responses(lm: SplitModel, batch: Batch) -> Tensor:
    """Hidden states [N, D] that predict the batch's response tokens, without a gradient: `response_states`, up to
    rounding, by the lean pass where the model has one [ours].

    Products see real tokens alone, and those of the last layer's MLP only the positions that predict a response.
    """
    if lm.lean is None:
        return response_states(lm, batch)
    real_BT = batch.attention_mask_BT.bool()
    row_N, column_N = real_BT.nonzero(as_tuple=True)
    place_of_real = real_BT.flatten().cumsum(0) - 1
    return lm.lean(
        batch.input_ids_BT[row_N, column_N],
        column_N,
        _Whole(lm.lean, row_N, column_N, real_BT.shape),
        wanted_M=place_of_real[batch.predict_index_N],
    )


class _Whole:
    """Every token of right-padded rows at once: a token attends to those before it, so none to padding. Letters as in
    `lean.py`: N tokens, W = the width of keys, X = that of queries."""

    def __init__(self, body: LeanBody, row_N: Tensor, column_N: Tensor, shape: tuple[int, ...]) -> None:
        self._row_N, self._column_N = row_N, column_N
        self._groups, self._is_whole = body.groups, len(row_N) == shape[0] * shape[1]
        self._shape = shape
        widths = (body.heads * body.head_size, body.width, body.width)
        self._padded = [torch.zeros(*shape, width, dtype=body.dtype, device=body.device) for width in widths]

    def __call__(self, layer: int, queries_NX: Tensor, keys_NW: Tensor, values_NW: Tensor) -> Tensor:
        queries_BTX, keys_BTW, values_BTW = map(self._pad, self._padded, (queries_NX, keys_NW, values_NW))
        mixed_BTX = many_tokens(queries_BTX, keys_BTW, values_BTW, None, groups=self._groups)
        return mixed_BTX.flatten(0, 1) if self._is_whole else mixed_BTX[self._row_N, self._column_N]

    def _pad(self, padded_BTX: Tensor, flat_NX: Tensor) -> Tensor:
        if self._is_whole:
            return flat_NX.reshape(*self._shape, -1)
        padded_BTX[self._row_N, self._column_N] = flat_NX
        return padded_BTX
