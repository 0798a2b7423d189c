"""Rows of a data set as token ids: template, lengths, held-out split, and the order in which they are visited.

Knows canonical JSONL rows and tokenizers. Does not know models, uploads or file formats (the backend normalises
those), and never cuts a prompt: a row that does not fit is refused by its number.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from app.core.errors import BadDataset, ContextTooShort, NoChatTemplate
from app.core.job_config import FileData


@dataclass(frozen=True)
class Row:
    """One prompt as ids. `number` is the row's 1-based place in the file.

    `response_ids` is what is trained on; `reference` is the data's own response, which answers are measured against
    (the teacher's where the data has none).
    """

    number: int
    prompt: str
    prompt_ids: tuple[int, ...]
    reference: str | None
    response_ids: tuple[int, ...] | None


class PromptEncoder:
    """Turns messages and responses into ids. The end of a response is the id that the template itself puts there."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, template: str, eos_ids: frozenset[int]) -> None:
        if template == "chat" and not tokenizer.chat_template:
            raise NoChatTemplate("the tokenizer has no chat template; use 'alpaca' or 'plain'", "data.template")
        if not eos_ids:
            raise BadDataset("the tokenizer names no end-of-text token, so no response can end", "teacher.model")
        self._tokenizer = tokenizer
        self._template = template
        self.eos_ids = eos_ids
        self.end_id = self._turn_end() if template == "chat" else self._plain_end()

    def prompt(self, messages: Sequence[dict[str, str]]) -> tuple[int, ...]:
        """Ids of the conversation up to where the assistant's answer begins."""
        if self._template == "chat":
            ids = self._tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=True, tokenize=True, return_dict=False
            )
            return tuple(ids)
        return tuple(self._tokenizer(self._render(messages)).input_ids)

    def response(self, text: str, *, max_tokens: int) -> tuple[int, ...]:
        """Ids of an answer with its end token; a longer answer is cut and then has no end token."""
        ids = [*self._tokenizer(text, add_special_tokens=False).input_ids, self.end_id]
        return tuple(ids[:max_tokens])

    def text(self, response_ids: Sequence[int]) -> str:
        """The answer as a person reads it."""
        return self._tokenizer.decode(response_ids, skip_special_tokens=True).strip()

    def _render(self, messages: Sequence[dict[str, str]]) -> str:
        if self._template == "plain":
            return "\n".join(message["content"] for message in messages) + "\n"
        heads = {"system": "", "user": "### Instruction:\n", "assistant": "### Response:\n"}
        turns = [heads[message["role"]] + message["content"] for message in messages]
        return "\n\n".join([*turns, heads["assistant"]])

    def _turn_end(self) -> int:
        """The first end-of-text id behind an assistant turn; templates often end turns with another id than EOS."""
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        ids = self._tokenizer.apply_chat_template(turns, tokenize=True, return_dict=False)
        start = len(self.prompt(turns[:1]))
        return next((i for i in ids[start:] if i in self.eos_ids), self._plain_end())

    def _plain_end(self) -> int:
        eos = self._tokenizer.eos_token_id
        return eos if eos in self.eos_ids else min(self.eos_ids)


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
    reference = raw.get("response") or None
    response_ids = None
    if reference and config.responses == "given":
        response_ids = encoder.response(reference, max_tokens=config.max_response_tokens)
    return Row(number, prompt, prompt_ids, reference, response_ids)


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


class RowOrder:
    """Endless batches of rows: a new seeded permutation for every pass, so that no row is seen twice in one."""

    def __init__(self, rows: Sequence[Row], *, seed: int) -> None:
        self._rows = list(rows)
        self._random = random.Random(seed)
        self._waiting: list[Row] = []

    def take(self, count: int) -> list[Row]:
        batch: list[Row] = []
        while len(batch) < count:
            if not self._waiting:
                self._waiting = self._random.sample(self._rows, len(self._rows))
            batch.append(self._waiting.pop())
        return batch
