"""One model's key/value cache over a batch of sequences: append tokens, and rewind rows to an earlier length.

Knows columns, masks and positions. Does not know what a prompt, a sample or a correction is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from worker.distill.lean import sees_every_column
from worker.distill.lean_columns import LeanColumns
from worker.distill.models import SplitModel

FIRST_COLUMNS = 256  # columns of a lean cache whose caller does not say how many it will need; it grows


def keeps_every_column(lm: SplitModel) -> bool:
    """Whether hiding cache columns by the attention mask gives what a fresh prefill would.

    True for plain attention. A sliding window counts hidden columns too, and a recurrent state cannot forget, so
    such models prefill again.
    """
    return sees_every_column(lm.model.config.get_text_config())


class Decoder:
    """The cache of `lm` over B rows. Rows may have different lengths: a column is visible to its own row or to none.

    `rewind` costs nothing. Where the model has a lean body (`lean.py`), its cache is allocated once, for `columns`
    columns if the caller knows how many it will need. Else, and with `reuse=False`, it is the model's own: the plain
    path. Both give the same states; `tokens_computed` counts tokens that went through the model, padding and rows that
    have ended included where the plain path computes them: it is what the benchmarks' guards count.
    """

    def __init__(self, lm: SplitModel, *, rows: int, reuse: bool = True, columns: int = FIRST_COLUMNS) -> None:
        self._columns: LeanColumns | PlainColumns
        if lm.lean is not None and reuse:
            self._columns = LeanColumns(lm.lean, rows=rows, columns=columns)
        else:
            self._columns = PlainColumns(lm, rows=rows, reuse=reuse)

    @property
    def length_B(self) -> Tensor:
        return self._columns.length_B

    @property
    def tokens_computed(self) -> int:
        return self._columns.tokens_computed

    def append(self, tokens_BT: Tensor, visible_BT: Tensor) -> Tensor:
        """Feeds T more columns and returns their hidden states [B, T, D], of any value where nothing is visible.

        Where `visible_BT` is False the column is padding: no position is used and no row ever attends to it.
        """
        return self._columns.append(tokens_BT, visible_BT)

    def step(self, tokens_A: Tensor, rows: Sequence[int]) -> Tensor:
        """Feeds one token to each of A different `rows` and returns their hidden states [A, D], in that order."""
        return self._columns.step(tokens_A, rows)

    def rewind(self, length_B: Tensor) -> None:
        """Forgets every token at position >= `length_B` of its row; a row that is shorter already is unchanged."""
        self._columns.rewind(length_B)


class PlainColumns:
    """The cache through the model's own forward pass, whatever its architecture.

    Dropped columns stay in the cache, hidden by the attention mask, and later tokens are appended behind them with
    their true positions. With `reuse=False` (and for models that cannot hide columns) the visible tokens are prefilled
    again instead: same result, slower.
    """

    def __init__(self, lm: SplitModel, *, rows: int, reuse: bool) -> None:
        self._lm = lm
        self._reuse = reuse and keeps_every_column(lm)
        self._cache: Any = None
        self._stale = False
        device = lm.device
        self._tokens_BC = torch.zeros(rows, 0, dtype=torch.long, device=device)
        self._visible_BC = torch.zeros(rows, 0, dtype=torch.bool, device=device)
        self._position_BC = torch.zeros(rows, 0, dtype=torch.long, device=device)
        self.length_B = torch.zeros(rows, dtype=torch.long, device=device)
        self.tokens_computed = 0

    @torch.no_grad()
    def append(self, tokens_BT: Tensor, visible_BT: Tensor) -> Tensor:
        if self._stale:
            self._prefill_again()
        position_BT = (self.length_B[:, None] + visible_BT.cumsum(1) - 1).clamp_min(0)
        self._tokens_BC = torch.cat([self._tokens_BC, tokens_BT], 1)
        self._visible_BC = torch.cat([self._visible_BC, visible_BT], 1)
        self._position_BC = torch.cat([self._position_BC, position_BT], 1)
        self.length_B = self.length_B + visible_BT.sum(1)
        return self._forward(tokens_BT, position_BT)

    def step(self, tokens_A: Tensor, rows: Sequence[int]) -> Tensor:
        index_A = torch.tensor(rows, device=tokens_A.device)
        token_B1, visible_B1 = tokens_A.new_zeros(len(self.length_B), 1), torch.zeros_like(self._visible_BC[:, :1])
        token_B1[index_A, 0] = tokens_A
        visible_B1[index_A, 0] = True
        return self.append(token_B1, visible_B1)[index_A, -1]

    def rewind(self, length_B: Tensor) -> None:
        self._visible_BC = self._visible_BC & (self._position_BC < length_B[:, None])
        self.length_B = torch.minimum(self.length_B, length_B)
        self._stale = not self._reuse

    def _forward(self, tokens_BT: Tensor, position_BT: Tensor) -> Tensor:
        if self._cache is None:
            self._cache = DynamicCache(config=self._lm.model.config)
        self.tokens_computed += tokens_BT.numel()
        return self._lm.hidden(
            tokens_BT,
            attention_mask=self._visible_BC.long(),
            position_ids=position_BT,
            cache=self._cache,
            use_cache=True,
        )

    def _prefill_again(self) -> None:
        """Packs the visible columns to the right (left padding) and runs them through an empty cache."""
        order_BC = self._visible_BC.long().argsort(dim=1, stable=True)  # hidden columns first, order kept
        columns = int(self.length_B.max())
        order_BC = order_BC[:, order_BC.shape[1] - columns :]
        self._tokens_BC = self._tokens_BC.gather(1, order_BC)
        self._position_BC = self._position_BC.gather(1, order_BC)
        self._visible_BC = self._visible_BC.gather(1, order_BC)
        self._cache = None
        self._stale = False
        if columns:
            self._forward(self._tokens_BC, self._position_BC.masked_fill(~self._visible_BC, 0))
