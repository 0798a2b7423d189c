"""The request and answers of the OpenAI-compatible endpoint, as OpenAI's clients send and read them.

Knows their field names. Does not know HTTP or comparisons beyond their shapes. A setting that would change the answer
and that no model here obeys is refused by name (`extra="forbid"`), never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from secrets import randbits
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.core.compare_schemas import Answer

FINISH = {"stop": "stop", "length": "length", "cancelled": "stop", None: None}


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TextPart(_Strict):
    type: Literal["text"]
    text: str


class Message(_Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Sequence[TextPart]
    name: str | None = None

    def as_ours(self) -> dict[str, str]:
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class StreamOptions(_Strict):
    include_usage: bool = False


class ChatIn(_Strict):
    """`user`, `metadata` and `store` change nothing here and are accepted."""

    model: str = Field(min_length=1, max_length=64, description="A model's id, see GET /v1/models.")
    messages: Sequence[Message] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1, le=4096)
    max_completion_tokens: int | None = Field(None, ge=1, le=4096, description="OpenAI's newer name of max_tokens.")
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int | None = Field(None, ge=0, lt=2**63, description="The same seed gives the same answer; default: any.")
    n: Literal[1] = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    metadata: Mapping[str, Any] | None = None
    store: bool | None = None

    @property
    def wants_usage(self) -> bool:
        """Of a stream; a whole answer always has it."""
        return self.stream_options is not None and self.stream_options.include_usage

    def as_comparison(self) -> dict[str, Any]:
        """The body of a comparison of one model (validated by the caller: an empty message is refused there)."""
        return {
            "model_ids": [self.model],
            "messages": [message.as_ours() for message in self.messages],
            "max_new_tokens": self.max_completion_tokens or self.max_tokens or 256,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": randbits(32) if self.seed is None else self.seed,
        }


class Usage(_Strict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ReplyMessage(_Strict):
    role: Literal["assistant"] = "assistant"
    content: str


class ReplyChoice(_Strict):
    index: Literal[0] = 0
    message: ReplyMessage
    finish_reason: Literal["stop", "length"]
    logprobs: None = None


class ChatOut(_Strict):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: Sequence[ReplyChoice]
    usage: Usage
    system_fingerprint: str | None = Field(description="The weights that answered: their SHA-256.")


class ErrorBody(_Strict):
    message: str
    type: str
    param: str | None
    code: str


class ErrorOut(_Strict):
    """OpenAI's shape of an error, which its clients read; everywhere else errors are problem+json."""

    error: ErrorBody


def usage_of(answer: Answer) -> Usage:
    prompt = answer.prompt_tokens or 0
    return Usage(prompt_tokens=prompt, completion_tokens=answer.tokens, total_tokens=prompt + answer.tokens)


def chunk(head: Mapping[str, Any], delta: Mapping[str, Any], *, finish: str | None = None) -> dict[str, Any]:
    """One piece of a streamed answer; `head` are the fields that all pieces share."""
    return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}]}
