"""Rows of a data set as token ids: template, lengths, held-out split, and the order in which they are visited.

Knows canonical JSONL rows and tokenizers. Does not know models, uploads or file formats (the backend normalises
those), and never cuts a prompt: a row that does not fit is refused by its number.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.trainer_pt_utils import get_length_grouped_indices

from app.core.errors import BadDataset, ContextTooShort
from app.core.job_config import FileData
from app.core.prompt_encoder import PromptEncoder
from worker.distill.training_state import State, packed, unpacked
from worker.distill.types import TokenSequence


@dataclass(frozen=True)
class Row:
    """One prompt as ids. `number` is the row's 1-based place in the file.

    `response_ids` is what is trained on; `reference` is the data's own response, which answers are measured against
    (the teacher's where the data has none); `more_references` are as good. `teacher_TD`: the teacher's states that
    predict the response's tokens, where they are kept.
    """

    number: int
    prompt: str
    prompt_ids: tuple[int, ...]
    reference: str | None
    response_ids: tuple[int, ...] | None
    more_references: tuple[str, ...] = ()
    teacher_TD: Tensor | None = field(default=None, repr=False, compare=False)

    @property
    def references(self) -> tuple[str, ...]:
        """All that an answer may be measured against; none when nobody has answered the prompt yet."""
        return (self.reference, *self.more_references) if self.reference else ()


def read_rows(config: FileData, encoder: PromptEncoder) -> list[Row]:
    """All rows of the file. Raises BadDataset naming the row (or `data.path`), never drops one silently."""
    if not config.path.is_file():
        raise BadDataset(f"there is no file {config.path}", "data.path")
    rows = [_row(i, line, config, encoder) for i, line in _numbered_lines(config.path)]
    if not rows:
        raise BadDataset(f"{config.path.name} has no rows", "data")
    return rows


def _numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    with path.open(encoding="utf-8") as lines:
        for i, line in enumerate(lines, start=1):
            if line.strip():
                yield i, line


def _row(number: int, line: str, config: FileData, encoder: PromptEncoder) -> Row:
    try:
        raw: dict[str, Any] = json.loads(line)
        messages = raw["messages"]
        prompt = messages[-1]["content"]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise BadDataset(f"row {number} is no canonical row with messages: {error!r}", "data") from error
    if not prompt.strip():
        raise BadDataset(f"row {number} has an empty prompt", "data")
    prompt_ids = encoder.prompt(messages)
    if len(prompt_ids) > config.max_prompt_tokens:
        raise BadDataset(
            f"row {number}: the prompt has {len(prompt_ids)} tokens; shorten it or raise data.max_prompt_tokens "
            f"(now {config.max_prompt_tokens})",
            "data.max_prompt_tokens",
        )
    references = _references(number, raw)
    reference = references[0] if references else None
    response_ids = None
    if reference and config.responses != "teacher":
        response_ids = encoder.response(reference, max_tokens=config.max_response_tokens)
    return Row(number, prompt, prompt_ids, reference, response_ids, tuple(references[1:]))


def _references(number: int, raw: dict[str, Any]) -> list[str]:
    """The response that is trained on, then the row's other right answers (`references`, a list of texts)."""
    others = raw.get("references") or []
    if not isinstance(others, list) or not all(isinstance(other, str) for other in others):
        raise BadDataset(f"row {number}: references is not a list of texts", "data")
    return list(dict.fromkeys(text for text in (raw.get("response"), *others) if text))


def check_context(rows: Sequence[Row], *, context: int, max_new_tokens: int, max_response_tokens: int) -> None:
    """Raises ContextTooShort for the first row whose prompt and longest response exceed `context` tokens."""
    for row in rows:
        needed = len(row.prompt_ids) + max(max_new_tokens, len(row.response_ids or ()))
        if row.response_ids is None:
            needed = max(needed, len(row.prompt_ids) + max_response_tokens)
        if needed > context:
            raise ContextTooShort(
                f"row {row.number}: its prompt of {len(row.prompt_ids)} tokens and the response need {needed} tokens, "
                f"the models have {context}; shorten it, or lower sampling.max_new_tokens or data.max_response_tokens",
                "sampling.max_new_tokens",
            )


def split(rows: Sequence[Row], *, dev_rows: int) -> tuple[list[Row], list[Row]]:
    """Training rows and the last `dev_rows` rows, which are held out."""
    if dev_rows >= len(rows):
        raise BadDataset(
            f"{len(rows)} rows leave none for training when {dev_rows} are held out; add rows or lower data.dev_rows",
            "data.dev_rows",
        )
    return list(rows[:-dev_rows]), list(rows[-dev_rows:])


def ground_truth(rows: Sequence[Row]) -> list[TokenSequence]:
    """The rows' own responses as training sequences. Every row that gets here has one."""
    return [TokenSequence(row.prompt_ids, row.response_ids or (), is_ground_truth=True) for row in rows]


def kept_states(rows: Sequence[Row], device: torch.device) -> Tensor | None:
    """The teacher's states [N, D] of the batch that `rows` make, on `device`; None unless every row has its own."""
    kept = [row.teacher_TD for row in rows if row.teacher_TD is not None]
    if len(kept) < len(rows):
        return None
    states_ND = torch.cat(kept)
    if device.type == "cuda":  # only from such memory is a copy done beside other work
        states_ND = states_ND.pin_memory()
    return states_ND.to(device, non_blocking=True)


class RowOrder:
    """Endless batches of rows: a new seeded permutation for every pass, so that no row is seen twice in one.

    With `alike`, rows that are taken so many at a time are of like length (less padding). Which rows these are, and in
    which order groups come, is still left to chance, by transformers' way of grouping.
    """

    def __init__(self, rows: Sequence[Row], *, seed: int, alike: int | None = None) -> None:
        self._rows = list(rows)
        self._random = random.Random(seed)
        self._alike = alike
        self._waiting: list[int] = []

    @property
    def highest_number(self) -> int:
        return max((row.number for row in self._rows), default=0)

    def take(self, count: int) -> list[Row]:
        batch: list[Row] = []
        while len(batch) < count:
            if not self._waiting:
                self._waiting = self._pass(missing=count - len(batch))
            batch.append(self._rows[self._waiting.pop()])
        return batch

    def _pass(self, *, missing: int) -> list[int]:
        """All rows, the last ones first. `missing`: how many complete the batch that the pass before left open."""
        rows, size = len(self._rows), self._alike
        if size is None:
            return self._random.sample(range(rows), rows)
        lengths = [len(row.prompt_ids) + len(row.response_ids or ()) for row in self._rows]
        generator = torch.Generator().manual_seed(self._random.getrandbits(63))
        order = get_length_grouped_indices(lengths, size, generator=generator)
        first = missing % size
        groups = [order[start : start + size] for start in range(first, rows, size)]
        rest = groups.pop() if groups and len(groups[-1]) < size else []
        self._random.shuffle(groups)  # transformers has the longest of some fifty batches first
        return [*order[:first], *chain.from_iterable(groups), *rest][::-1]

    def state(self) -> State:
        return {"random": packed(self._random.getstate()), "waiting": self._waiting}

    def load(self, state: State) -> None:
        self._random.setstate(unpacked(state["random"]))
        self._waiting = list(state["waiting"])
