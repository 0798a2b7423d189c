"""What a data set looks like to a model: one row's exact tokens with its loss mask, and how long rows are.

Knows canonical rows and the trainer's own encoder. Does not know HTTP or where rows are stored. Every length counts the
tokens that the trainer would make, the end token included.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from statistics import median_low
from typing import TYPE_CHECKING

from app.core.errors import BadDataset
from app.core.preview_schemas import DatasetRow, Lengths, PreviewIn, PreviewOut, TokenOut
from app.core.prompt_encoder import PromptEncoder
from app.core.tokenizer_files import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# A preview answers while a reader waits: about a second of a fast tokenizer.
ROWS_READ = 2000
NAMED_ROWS = 20
BINS = 24
_UNBOUNDED = 2**31


def read_rows(lines: Iterable[bytes]) -> Iterator[DatasetRow]:
    """Canonical rows of a stored data set."""
    for line in lines:
        if line.strip():
            yield DatasetRow.model_validate(json.loads(line))


def preview(lines: Iterable[bytes], request: PreviewIn) -> PreviewOut:
    """Raises what loading the teacher's tokenizer raises, NoChatTemplate, and BadDataset when there is no such row."""
    tokenizer, end_ids = load_tokenizer(request.teacher, field="teacher")
    encoder = PromptEncoder(tokenizer, template=request.template, eos_ids=end_ids)
    shown: DatasetRow | None = None
    prompts, responses = [], []
    for number, row in enumerate(islice(read_rows(lines), max(ROWS_READ, request.row)), start=1):
        if number == request.row:
            shown = row
        if number <= ROWS_READ:
            prompts.append(len(encoder.prompt(_messages(row))))
            if (text := _trained_on(row, request)) is not None:
                responses.append(len(encoder.response(text, max_tokens=_UNBOUNDED)))
    if shown is None:
        raise BadDataset(f"the data set has no row {request.row}", "row")
    too_long = [number for number, length in enumerate(prompts, start=1) if length > request.max_prompt_tokens]
    text = _trained_on(shown, request)
    return PreviewOut(
        row=request.row,
        tokens=_tokens(shown, text, request, encoder=encoder, tokenizer=tokenizer),
        is_cut=text is not None and len(encoder.response(text, max_tokens=_UNBOUNDED)) > request.max_response_tokens,
        rows_read=len(prompts),
        prompt_lengths=histogram(prompts),
        response_lengths=histogram(responses) if responses else None,
        too_long=too_long[:NAMED_ROWS],
        too_long_count=len(too_long),
        cut_count=sum(length > request.max_response_tokens for length in responses),
    )


def _messages(row: DatasetRow) -> list[dict[str, str]]:
    return [dict(message) for message in row.messages]


def _trained_on(row: DatasetRow, request: PreviewIn) -> str | None:
    """The row's own response, unless the teacher is to write it."""
    return row.response if request.responses != "teacher" else None


def _tokens(
    row: DatasetRow,
    response: str | None,
    request: PreviewIn,
    *,
    encoder: PromptEncoder,
    tokenizer: PreTrainedTokenizerBase,
) -> list[TokenOut]:
    prompt_ids = encoder.prompt(_messages(row))
    response_ids = () if response is None else encoder.response(response, max_tokens=request.max_response_tokens)
    masked = [(i, False) for i in prompt_ids] + [(i, True) for i in response_ids]
    return [TokenOut(id=i, text=tokenizer.decode([i]), in_loss=in_loss) for i, in_loss in masked]


def histogram(lengths: Sequence[int]) -> Lengths:
    """At most BINS bins of one whole width, from 0 to beyond the longest. `lengths` is not empty."""
    width = max(lengths) // BINS + 1
    num_bins = max(lengths) // width + 1
    counts = [0] * num_bins
    for length in lengths:
        counts[length // width] += 1
    return Lengths(
        edges=[i * width for i in range(num_bins + 1)],
        counts=counts,
        shortest=min(lengths),
        median=median_low(lengths),
        longest=max(lengths),
    )
