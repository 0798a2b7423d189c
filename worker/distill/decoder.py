"""One model's key/value cache over a batch of sequences: append tokens, and rewind rows to an earlier length.

Knows columns, masks and positions. Does not know what a prompt, a sample or a correction is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from worker.distill.models import SplitModel


def keeps_every_column(lm: SplitModel) -> bool:
    """Whether hiding cache columns by the attention mask gives what a fresh prefill would.

    True for plain attention. A sliding window counts hidden columns too, and a recurrent state cannot forget, so
    such models prefill again.
    """
    config = lm.model.config.get_text_config()
    types = set(getattr(config, "layer_types", None) or ["full_attention"])
    return types == {"full_attention"} and not getattr(config, "sliding_window", None)


class Decoder:
    """The cache of `lm` over B rows. Rows may have different lengths: a column is visible to its own row or to none.

    `rewind` costs nothing: the dropped columns stay in the cache, hidden by the attention mask, and later tokens are
    appended behind them with their true positions. With `reuse=False` (and for models that cannot hide columns) the
    visible tokens are prefilled again instead: same result, slower; kept as the plain path for tests and benchmarks.
    """

    def __init__(self, lm: SplitModel, *, rows: int, reuse: bool = True) -> None:
        self._lm = lm
        self._reuse = reuse and keeps_every_column(lm)
        self._cache: Any = None
        self._stale = False
        device = lm.device
        self._tokens_BC = torch.zeros(rows, 0, dtype=torch.long, device=device)
        self._visible_BC = torch.zeros(rows, 0, dtype=torch.bool, device=device)
        self._position_BC = torch.zeros(rows, 0, dtype=torch.long, device=device)
        self.length_B = torch.zeros(rows, dtype=torch.long, device=device)
        self.tokens_computed = 0  # columns x rows that went through the model: what the benchmarks' guards count

    @torch.no_grad()
    def append(self, tokens_BT: Tensor, visible_BT: Tensor) -> Tensor:
        """Feeds T more columns and returns their hidden states [B, T, D].

        Where `visible_BT` is False the column is padding: no position is used and no row ever attends to it.
        """
        if self._stale:
            self._prefill_again()
        position_BT = (self.length_B[:, None] + visible_BT.cumsum(1) - 1).clamp_min(0)
        self._tokens_BC = torch.cat([self._tokens_BC, tokens_BT], 1)
        self._visible_BC = torch.cat([self._visible_BC, visible_BT], 1)
        self._position_BC = torch.cat([self._position_BC, position_BT], 1)
        self.length_B = self.length_B + visible_BT.sum(1)
        return self._forward(tokens_BT, position_BT)

    def rewind(self, length_B: Tensor) -> None:
        """Forgets every token at position >= `length_B` of its row; a row that is shorter already is unchanged."""
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
