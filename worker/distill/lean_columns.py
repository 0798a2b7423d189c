"""The cache of a lean body over a batch of rows, allocated once: a token's column is its position in its row.

Knows rows, slots and lengths. Does not know models beyond `LeanBody`, nor what a prompt or a sample is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from worker.distill.lean import LeanBody, many_tokens, one_token_each


class LeanColumns:
    """B rows, each in a slot of the cache. Rewinding a row is a shorter length: what lies behind is written over.

    Rows that are stepped stand in the first slots, so that a step reads and computes them alone, without a copy of the
    others; a row that ends changes place with the last one that goes on.
    """

    def __init__(self, body: LeanBody, *, rows: int, columns: int) -> None:
        self._body = body
        self._cache = self._allocate(rows, columns)
        self._row_of_slot = list(range(rows))
        self.length_B = torch.zeros(rows, dtype=torch.long, device=body.device)
        self.tokens_computed = 0

    @torch.no_grad()
    def append(self, tokens_BT: Tensor, visible_BT: Tensor) -> Tensor:
        """Hidden states [B, T, D] of the visible tokens; zero where nothing is visible."""
        if tokens_BT.shape[1] == 1 and bool(visible_BT.any()):
            rows = visible_BT[:, 0].nonzero().squeeze(1)
            stepped_AD = self.step(tokens_BT[rows, 0], rows.tolist())
            hidden_B1D = stepped_AD.new_zeros(len(tokens_BT), 1, stepped_AD.shape[-1])
            hidden_B1D[rows, 0] = stepped_AD
            return hidden_B1D
        order = torch.tensor(self._row_of_slot, device=tokens_BT.device)
        visible_BT, start_B = visible_BT[order], self.length_B[order]
        row_N, column_N = visible_BT.nonzero(as_tuple=True)
        position_BT = (start_B[:, None] + visible_BT.cumsum(1) - 1).clamp_min(0)
        position_N = position_BT[row_N, column_N]
        longest = int((start_B + visible_BT.sum(1)).max())
        self._reserve(longest)
        attend = _Many(self._cache, self._body.groups, row_N, column_N, position_BT, visible_BT, position_N, longest)
        hidden_ND = self._body(tokens_BT[order][row_N, column_N], position_N, attend)
        self.tokens_computed += len(row_N)
        hidden_BTD = hidden_ND.new_zeros(*tokens_BT.shape, hidden_ND.shape[-1])
        hidden_BTD[order[row_N], column_N] = hidden_ND
        self.length_B = self.length_B.index_add(0, order, visible_BT.sum(1))
        return hidden_BTD

    @torch.no_grad()
    def step(self, tokens_A: Tensor, rows: Sequence[int]) -> Tensor:
        """Hidden states [A, D] of one more token for each of `rows`, in their order."""
        self._bring_forward(rows)
        index_A = torch.tensor(rows, device=tokens_A.device)
        slots = self._row_of_slot[: len(rows)]
        rank = {row: i for i, row in enumerate(rows)}
        order_A = torch.tensor([rank[row] for row in slots], device=tokens_A.device)
        position_A = self.length_B[index_A[order_A]]
        longest = int(position_A.max()) + 1
        self._reserve(longest)
        attend = _One(self._cache, self._body.groups, position_A, longest)
        hidden_AD = self._body(tokens_A[order_A], position_A, attend)
        self.tokens_computed += len(rows)
        self.length_B[index_A] += 1
        if slots == list(rows):
            return hidden_AD
        in_order_AD = torch.empty_like(hidden_AD)
        in_order_AD[order_A] = hidden_AD
        return in_order_AD

    def rewind(self, length_B: Tensor) -> None:
        self.length_B = torch.minimum(self.length_B, length_B)

    def _bring_forward(self, rows: Sequence[int]) -> None:
        """Swaps slots until `rows` stand in the first ones."""
        wanted = set(rows)
        free = [slot for slot, row in enumerate(self._row_of_slot[: len(rows)]) if row not in wanted]
        for slot in range(len(rows), len(self._row_of_slot)):
            if self._row_of_slot[slot] in wanted:
                self._swap(slot, free.pop())

    def _swap(self, a: int, b: int) -> None:
        first = self._cache[:, :, a].clone()
        self._cache[:, :, a] = self._cache[:, :, b]
        self._cache[:, :, b] = first
        self._row_of_slot[a], self._row_of_slot[b] = self._row_of_slot[b], self._row_of_slot[a]

    def _allocate(self, rows: int, columns: int) -> Tensor:
        body = self._body
        shape = (len(body.layers), 2, rows, columns, body.width)
        return torch.zeros(shape, dtype=body.dtype, device=body.device)

    def _reserve(self, columns: int) -> None:
        """Grows the cache when a caller named too few columns."""
        have = self._cache.shape[3]
        if columns > have:
            larger = self._allocate(self._cache.shape[2], max(columns, 2 * have))
            larger[:, :, :, :have] = self._cache
            self._cache = larger


class _One:
    """One token for each of the first rows."""

    def __init__(self, cache: Tensor, groups: int, position_A: Tensor, longest: int) -> None:
        rows = len(position_A)
        self._groups = groups
        self._cache = cache
        self._rows_A = torch.arange(rows, device=position_A.device)
        self._position_A = position_A
        self._longest = longest
        self._mask: Tensor | None = None
        if int(position_A.min()) + 1 < longest:
            hidden_AC = torch.arange(longest, device=position_A.device) > position_A[:, None]
            self._mask = torch.zeros(rows, 1, 1, longest, dtype=cache.dtype, device=cache.device)
            self._mask.masked_fill_(hidden_AC[:, None, None], -torch.inf)

    def __call__(self, layer: int, queries_NX: Tensor, keys_NW: Tensor, values_NW: Tensor) -> Tensor:
        keys_BCW, values_BCW = self._cache[layer]
        keys_BCW[self._rows_A, self._position_A] = keys_NW
        values_BCW[self._rows_A, self._position_A] = values_NW
        rows = len(self._rows_A)
        shown = slice(0, self._longest)
        return one_token_each(
            queries_NX, keys_BCW[:rows, shown], values_BCW[:rows, shown], self._mask, groups=self._groups
        )


class _Many:
    """Any number of tokens per row."""

    def __init__(
        self,
        cache: Tensor,
        groups: int,
        row_N: Tensor,
        column_N: Tensor,
        position_BT: Tensor,
        visible_BT: Tensor,
        position_N: Tensor,
        longest: int,
    ) -> None:
        self._cache, self._groups = cache, groups
        self._row_N, self._column_N, self._position_N = row_N, column_N, position_N
        self._shape = tuple(visible_BT.shape)
        self._longest = longest
        self._all = len(row_N) == visible_BT.numel()
        self._mask: Tensor | None = None
        if not (self._all and longest == visible_BT.shape[1]):
            shown_BTC = torch.arange(longest, device=cache.device) <= position_BT[:, :, None]
            self._mask = torch.zeros(shown_BTC.shape, dtype=cache.dtype, device=cache.device)
            self._mask = self._mask.masked_fill_(~shown_BTC, -torch.inf)[:, None]

    def __call__(self, layer: int, queries_NX: Tensor, keys_NW: Tensor, values_NW: Tensor) -> Tensor:
        keys_BCW, values_BCW = self._cache[layer]
        keys_BCW[self._row_N, self._position_N] = keys_NW
        values_BCW[self._row_N, self._position_N] = values_NW
        shown = slice(0, self._longest)
        if self._all:
            queries_BTX = queries_NX.view(*self._shape, -1)
        else:
            queries_BTX = queries_NX.new_zeros(*self._shape, queries_NX.shape[-1])
            queries_BTX[self._row_N, self._column_N] = queries_NX
        mixed_BTX = many_tokens(queries_BTX, keys_BCW[:, shown], values_BCW[:, shown], self._mask, groups=self._groups)
        return mixed_BTX.flatten(0, 1) if self._all else mixed_BTX[self._row_N, self._column_N]
