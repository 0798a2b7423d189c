"""Fresh batches that were drawn in one generation and are used one after another.

Knows how a generation is divided and what of it outlives a pause. Does not know how it is drawn, nor when a batch is
due.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from worker.distill.rollout import FreshBatch
from worker.distill.training_state import State
from worker.distill.types import TokenSequence


class WaitingBatches:
    """What is left of the newest generation [ours].

    A decoding step costs nearly the same for few rows as for many, so the rows of several batches are cheaper to sample
    together. The price: all but the first batch come from weights that are some steps old.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._batches: deque[FreshBatch] = deque()

    def __len__(self) -> int:
        return len(self._batches)

    def put(self, generation: FreshBatch, *, batches: int) -> None:
        self._batches.extend(divide(generation, batches))

    def take(self) -> FreshBatch:
        """The oldest."""
        return self._batches.popleft()

    def state(self) -> list[State]:
        return [
            {
                "sequences": _listed(batch.sequences),
                "to_store": _listed(batch.to_store),
                "teacher_hidden": batch.teacher_hidden_ND,
                "metrics": batch.metrics,
            }
            for batch in self._batches
        ]

    def load(self, state: Sequence[State]) -> None:
        self._batches = deque(
            FreshBatch(
                sequences=_sequences(batch["sequences"]),
                to_store=_sequences(batch["to_store"]),
                teacher_hidden_ND=batch["teacher_hidden"].to(self._device),
                metrics=batch["metrics"],
            )
            for batch in state
        )


def divide(generation: FreshBatch, batches: int) -> Iterator[FreshBatch]:
    """`generation` in `batches` parts, whose rows keep their order.

    Equal parts: where `scrg.no_mismatch: drop` has left fewer rows than were drawn, each batch has its share of those,
    and there are fewer batches only where there are fewer rows. Every part has the metrics of the whole generation; its
    one example goes with the first.
    """
    total = len(generation.sequences)
    batches = min(batches, total)
    if batches <= 1:
        yield generation
        return
    rows = [slice(total * i // batches, total * (i + 1) // batches) for i in range(batches)]
    tokens = [sum(len(sequence.response_ids) for sequence in generation.sequences[part]) for part in rows]
    for i, (part, states_ND) in enumerate(zip(rows, generation.teacher_hidden_ND.split(tokens), strict=True)):
        yield FreshBatch(
            sequences=generation.sequences[part],
            to_store=generation.to_store[part],
            teacher_hidden_ND=states_ND.clone(),  # a view would hold the whole generation until its last batch is used
            metrics=generation.metrics,
            example=None if i else generation.example,
        )


def _listed(sequences: Sequence[TokenSequence]) -> list[list[Any]]:
    return [[sequence.prompt_ids, sequence.response_ids] for sequence in sequences]


def _sequences(listed: Sequence[Sequence[Any]]) -> list[TokenSequence]:
    return [TokenSequence(tuple(prompt), tuple(response), is_ground_truth=False) for prompt, response in listed]
