"""What a training batch is made of: token sequences, the tensors of a micro-batch, and the letters of tensor names.

Knows ids, lengths and positions only. Does not know models, text or losses.

Letters in tensor names, here and in every module of the library:
    B  rows (sequences) of a micro-batch          T  positions of the longest row, prompt and padding included
    V  vocabulary ids that both models share      D  hidden size of one model
    N  response positions of the micro-batch, in row order, each row's first end-of-text token included
    M  positions of one slice of N, plus at most one behind it that only completes the slice's last span pair
    K  the teacher's most probable classes        P  span pairs: adjacent tokens of one span        S  spans
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

# The wish to stop, asked for between steps: for good, or with a checkpoint to go on from.
Stop = Literal["cancel", "pause"]
ShouldStop = Callable[[], Stop | None]


@dataclass(frozen=True)
class TokenSequence:
    """A prompt and its response, which ends with its first end-of-text id unless it was cut."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    is_ground_truth: bool


@dataclass(frozen=True)
class SpanPairs:
    """Adjacent tokens of one span: positions in N (sorted, second = first + 1) and the number of each pair's span."""

    index_P2: Tensor
    span_P: Tensor

    @classmethod
    def none(cls) -> SpanPairs:
        return cls(torch.zeros(0, 2, dtype=torch.long), torch.zeros(0, dtype=torch.long))


@dataclass(frozen=True)
class Batch:
    """A right-padded micro-batch. Built by `make_batch`; integers are int64, flags bool."""

    input_ids_BT: Tensor
    attention_mask_BT: Tensor
    position_ids_BT: Tensor
    # Flat index into B*T of the position whose hidden state predicts response token n: the column *before* the token.
    predict_index_N: Tensor
    labels_N: Tensor
    row_N: Tensor
    is_ground_truth_B: Tensor
    pair_index_P2: Tensor
    pair_span_P: Tensor

    @property
    def num_positions(self) -> int:
        return self.labels_N.shape[0]

    @property
    def num_pairs(self) -> int:
        return self.pair_span_P.shape[0]

    def predicting(self, hidden_BTD: Tensor) -> Tensor:
        """The hidden states [N, D] that predict the response tokens."""
        return hidden_BTD.flatten(0, 1)[self.predict_index_N]

    @cached_property
    def is_ground_truth_N(self) -> Tensor:
        return self.is_ground_truth_B[self.row_N]

    @cached_property
    def num_ground_truth_positions(self) -> int:
        return int(self.is_ground_truth_N.sum())

    @cached_property
    def num_spans(self) -> int:
        return self.pair_span_P.unique().numel()

    @cached_property
    def pair_span_size_P(self) -> Tensor:
        """How many pairs the span of each pair has."""
        return torch.bincount(self.pair_span_P)[self.pair_span_P] if self.num_pairs else self.pair_span_P


def make_batch(
    sequences: Sequence[TokenSequence],
    *,
    pairs: SpanPairs | None = None,
    pad_id: int,
    device: torch.device | str = "cpu",
) -> Batch:
    """The tensors of `sequences`, in their order. Masks come from lengths, so `pad_id` may be a token of the text.

    `pairs` are the span pairs of exactly these sequences (none if left out). Every prompt has at least one token,
    since the first response token is predicted by the position before it; a response may be empty.
    """
    assert all(sequence.prompt_ids for sequence in sequences), "a sequence without a prompt"
    rows = [[*sequence.prompt_ids, *sequence.response_ids] for sequence in sequences]
    width = max(map(len, rows))
    lengths_B = torch.tensor([len(row) for row in rows])
    predict: list[int] = []
    labels: list[int] = []
    row_of: list[int] = []
    for b, sequence in enumerate(sequences):
        before = b * width + len(sequence.prompt_ids) - 1
        predict.extend(range(before, before + len(sequence.response_ids)))
        labels.extend(sequence.response_ids)
        row_of.extend([b] * len(sequence.response_ids))
    pairs = pairs or SpanPairs.none()
    positions_BT = torch.arange(width).expand(len(rows), width)
    on_cpu = Batch(
        input_ids_BT=torch.tensor([row + [pad_id] * (width - len(row)) for row in rows]),
        attention_mask_BT=(positions_BT < lengths_B[:, None]).long(),
        position_ids_BT=positions_BT.contiguous(),
        predict_index_N=torch.tensor(predict, dtype=torch.long),
        labels_N=torch.tensor(labels, dtype=torch.long),
        row_N=torch.tensor(row_of, dtype=torch.long),
        is_ground_truth_B=torch.tensor([sequence.is_ground_truth for sequence in sequences]),
        pair_index_P2=pairs.index_P2,
        pair_span_P=pairs.span_P,
    )
    return Batch(**{name: tensor.to(device) for name, tensor in vars(on_cpu).items()})
