"""REST shapes of a data set's preview: rows, exact tokens, lengths. Knows field names and types only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from app.core.schemas import Shape


class DatasetRow(Shape):
    """A canonical row, as the trainer reads it."""

    messages: Sequence[Mapping[str, str]]
    response: str | None = None
    references: Sequence[str] = ()


class PreviewIn(Shape):
    """What decides how rows become tokens; the fields are those of a job's `teacher` and `data`."""

    teacher: str = Field(min_length=1, description="Hub id, local folder, or path of a .gguf file.")
    template: Literal["chat", "alpaca", "plain"] = "chat"
    responses: Literal["given", "teacher", "student"] = "given"
    max_prompt_tokens: int = Field(512, ge=1)
    max_response_tokens: int = Field(256, ge=1)
    row: int = Field(1, ge=1, description="1-based row whose tokens are shown.")


class TokenOut(Shape):
    id: int
    text: str
    in_loss: bool = Field(description="Whether the losses count this token; prompt tokens are only read.")


class Lengths(Shape):
    """Token counts: bin i counts the rows of `edges[i]` to below `edges[i + 1]` tokens."""

    edges: Sequence[int]
    counts: Sequence[int]
    shortest: int
    median: int
    longest: int


class PreviewOut(Shape):
    """Example `row` as the model will read it, and how long rows are."""

    row: int
    tokens: Sequence[TokenOut]
    is_cut: bool = Field(description="The response is longer than max_response_tokens, so its end is not trained on.")
    rows_read: int = Field(description="Rows whose lengths were counted: the first ones of a large data set.")
    prompt_lengths: Lengths
    response_lengths: Lengths | None = Field(description="None when no row read has a response.")
    too_long: Sequence[int] = Field(description="Rows (at most 20) whose prompt exceeds max_prompt_tokens.")
    too_long_count: int
    cut_count: int = Field(description="Rows whose response exceeds max_response_tokens.")
