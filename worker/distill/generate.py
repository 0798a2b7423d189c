"""Sampling responses from a model: one loop that starts, and later continues, a batch of responses.

Knows tokens, EOS and random numbers. Does not know teachers, corrections or losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.distill.decoder import Decoder
from worker.distill.models import SplitModel


@dataclass(frozen=True)
class SamplingSettings:
    """How tokens are drawn. `temperature` 0 is greedy. Sampling stops at any of `eos_ids` (kept) or `max_new_tokens`.

    `ignore_eos` goes on to max_new_tokens whatever is drawn: equal work for benchmarks.
    """

    max_new_tokens: int
    temperature: float
    top_p: float
    eos_ids: frozenset[int]
    pad_id: int
    reuse_cache: bool = True
    ignore_eos: bool = False


@dataclass
class Rollouts:
    """B responses in the making, with what later steps need. Legend: T = max_new_tokens, D = hidden size.

    `hidden_BTD[b, t]` is the state that predicts `tokens_BT[b, t]`. Invariant between calls: the decoder holds each
    row's prompt and all of its response but the last token.
    """

    prompts: list[tuple[int, ...]]
    prompt_length_B: Tensor
    tokens_BT: Tensor
    length_B: Tensor
    hidden_BTD: Tensor
    decoder: Decoder

    def responses(self) -> list[tuple[int, ...]]:
        lengths = self.length_B.tolist()
        return [tuple(row[:n]) for row, n in zip(self.tokens_BT.tolist(), lengths, strict=True)]

    def valid_BT(self) -> Tensor:
        """True where a response has a token."""
        return torch.arange(self.tokens_BT.shape[1], device=self.length_B.device) < self.length_B[:, None]


def pad_left(rows: Sequence[Sequence[int]], *, pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids [B, T] and which of them are real (from lengths, so a pad id inside a row stays visible)."""
    columns = max(len(row) for row in rows)
    tokens = [[pad_id] * (columns - len(row)) + list(row) for row in rows]
    length_B = torch.tensor([len(row) for row in rows], device=device)
    visible_BT = torch.arange(columns, device=device) >= columns - length_B[:, None]
    return torch.tensor(tokens, dtype=torch.long, device=device), visible_BT


def draw(probabilities_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """One class per row by inverting the cumulative distribution at `uniform_B` in [0, 1).

    One random number per row, however large V is; the row's draw does not depend on the other rows.
    """
    cumulative_BV = probabilities_BV.cumsum(-1)
    target_B1 = uniform_B[:, None].to(cumulative_BV) * cumulative_BV[:, -1:]
    index_B = torch.searchsorted(cumulative_BV, target_B1, right=True).squeeze(1)
    return index_B.clamp_max(probabilities_BV.shape[-1] - 1)


def chances(rows: int, *, settings: SamplingSettings, generator: torch.Generator, device: torch.device) -> Tensor:
    """Random numbers [B, T], one per row and response position: which rows go on, and when, changes no other token.

    Drawn on the CPU, so that they are the same on every device.
    """
    return torch.rand(rows, settings.max_new_tokens, generator=generator).to(device)


def next_tokens(logits_AV: Tensor, *, settings: SamplingSettings, uniform_A: Tensor) -> Tensor:
    """The next token of each row [A], by its random number in [0, 1)."""
    if settings.temperature == 0:
        return logits_AV.argmax(-1)
    if settings.temperature != 1:
        logits_AV = logits_AV.float() / settings.temperature
    probabilities_AV = torch.softmax(logits_AV, -1, dtype=torch.float32)
    if settings.top_p < 1:
        sorted_AV, order_AV = probabilities_AV.sort(-1, descending=True)
        outside_AV = sorted_AV.cumsum(-1) - sorted_AV >= settings.top_p  # the class that crosses top_p stays
        probabilities_AV = probabilities_AV.scatter(-1, order_AV, sorted_AV.masked_fill(outside_AV, 0))
    return draw(probabilities_AV, uniform_A)


@torch.no_grad()
def begin(lm: SplitModel, prompts: Sequence[tuple[int, ...]], *, settings: SamplingSettings) -> tuple[Rollouts, Tensor]:
    """The prompts read and no response begun, and the states [B, D] that predict the first tokens."""
    longest = max(map(len, prompts))
    decoder = Decoder(lm, rows=len(prompts), reuse=settings.reuse_cache, columns=longest + settings.max_new_tokens)
    hidden_BTD = decoder.append(*pad_left(prompts, pad_id=settings.pad_id, device=lm.device))
    rows, _, size = hidden_BTD.shape
    state = Rollouts(
        prompts=list(prompts),
        prompt_length_B=decoder.length_B.clone(),
        tokens_BT=torch.full((rows, settings.max_new_tokens), settings.pad_id, device=lm.device),
        length_B=torch.zeros(rows, dtype=torch.long, device=lm.device),
        hidden_BTD=hidden_BTD.new_zeros(rows, settings.max_new_tokens, size),
        decoder=decoder,
    )
    return state, hidden_BTD[:, -1]


@torch.no_grad()
def sample(
    lm: SplitModel,
    prompts: Sequence[tuple[int, ...]],
    *,
    settings: SamplingSettings,
    generator: torch.Generator,
) -> Rollouts:
    """Samples one response to each prompt."""
    uniform_BT = chances(len(prompts), settings=settings, generator=generator, device=lm.device)
    state, hidden_BD = begin(lm, prompts, settings=settings)
    extend(lm, state, list(range(len(prompts))), settings=settings, uniform_BT=uniform_BT, hidden_AD=hidden_BD)
    return state


@torch.no_grad()
def extend(
    lm: SplitModel,
    state: Rollouts,
    rows: Sequence[int],
    *,
    settings: SamplingSettings,
    uniform_BT: Tensor,
    hidden_AD: Tensor | None = None,
    steps: int | None = None,
) -> list[int]:
    """Samples `steps` tokens for `rows`, or until each has ended; returns those that have not.

    `hidden_AD` predicts their next tokens; without it their last tokens, which the decoder lacks, are fed first. A row
    that has ended is computed no more.
    """
    eos_ids_E = torch.tensor(sorted(settings.eos_ids), device=lm.device)
    rows = list(rows)
    while rows and (steps is None or steps > 0):
        index_A = torch.tensor(rows, device=lm.device)
        at_A = state.length_B[index_A]
        if hidden_AD is None:
            hidden_AD = state.decoder.step(state.tokens_BT[index_A, at_A - 1], rows)
        token_A = next_tokens(lm.head(hidden_AD), settings=settings, uniform_A=uniform_BT[index_A, at_A])
        state.hidden_BTD[index_A, at_A] = hidden_AD
        state.tokens_BT[index_A, at_A] = token_A
        state.length_B[index_A] += 1
        ended_A = at_A + 1 >= settings.max_new_tokens
        if not settings.ignore_eos:
            ended_A |= torch.isin(token_A, eos_ids_E)
        rows = [row for row, ended in zip(rows, ended_A.tolist(), strict=True) if not ended]
        hidden_AD = None
        steps = None if steps is None else steps - 1
    return rows
