"""Messages and responses as token ids: what the trainer feeds a model, and what the page shows of it beforehand.

Knows templates and tokenizers. Needs no torch, and does not know files, models or which ids carry loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.core.errors import BadDataset, NoChatTemplate

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
