"""Turns an uploaded file into canonical rows: JSONL, a JSON array, CSV or Parquet, in any of five formats.

Knows file types, columns and what a usable row is. Does not know the database, storage or HTTP. A canonical row is
`{"messages": [{"role", "content"}, ...], "response": text or null}`; the last message is the user's turn to answer. A
row with several right answers also has `"references": [text, ...]`: those beside the response.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, Literal

from app.core.errors import BadDataset
from app.core.schemas import RowProblem

Format = Literal["prompt", "prompt_response", "messages", "alpaca", "sharegpt"]
FIELD = "file"  # the part of the upload that errors point at
_PROMPT_COLUMNS = ("prompt", "question", "query")
_RESPONSE_COLUMNS = ("response", "completion", "output", "answer")
_SHAREGPT_ROLES = {"human": "user", "gpt": "assistant"}
_ROLES = ("system", "user", "assistant")
_MAX_NAMED_ROWS = 10  # a refusal names so many
_MAX_PROBLEMS = 100  # so many rows that were left out are listed

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Normalised:
    format: Format
    rows: int
    rows_with_response: int
    problems: tuple[RowProblem, ...]
    sha256: str  # of the canonical file


class _NoPrompt(Exception):
    """The row has nothing to answer: the whole file is refused."""


class _Unusable(Exception):
    """The row is left out, and reported."""


def normalise(source: BinaryIO, name: str, target: Path) -> Normalised:
    """Reads `source` (a file called `name` by its owner) and writes canonical JSONL to `target`, row by row.

    Raises BadDataset when the file is empty or cannot be read, or when rows have no prompt (names them). Rows that
    are unusable for another reason are left out and reported.
    """
    reader = _Reader()
    digest = hashlib.sha256()
    with target.open("wb") as out:
        for canonical in reader.canonical(_records(source, name)):
            line = json.dumps(canonical, ensure_ascii=False).encode() + b"\n"
            digest.update(line)
            out.write(line)
    return reader.result(digest.hexdigest())


class _Reader:
    """Counts and collects problems on the way from records to canonical rows."""

    def __init__(self) -> None:
        self._format: Format | None = None
        self._rows = 0
        self._with_response = 0
        self._refused: list[str] = []
        self._left_out: list[RowProblem] = []

    def canonical(self, records: Iterator[tuple[int, Any]]) -> Iterator[dict[str, Any]]:
        for number, record in records:
            try:
                row = self._convert(record)
            except _NoPrompt as problem:
                self._refused.append(f"row {number} {problem}")
                if len(self._refused) == _MAX_NAMED_ROWS:
                    break
                continue
            except _Unusable as problem:
                self._left_out.append(RowProblem(row=number, message=str(problem)))
                continue
            self._rows += 1
            self._with_response += row["response"] is not None
            yield row

    def result(self, sha256: str) -> Normalised:
        if self._refused:
            raise BadDataset("; ".join(self._refused) + "; correct or remove these rows", FIELD)
        if not self._rows:
            why = f": {self._left_out[0].message} (row {self._left_out[0].row})" if self._left_out else ""
            raise BadDataset(f"the data set has no usable row{why}", FIELD)
        assert self._format is not None
        found = self._format
        if found == "prompt" and self._with_response:
            found = "prompt_response"  # the first row may lack a response that later ones have
        return Normalised(
            format=found,
            rows=self._rows,
            rows_with_response=self._with_response,
            problems=tuple(self._left_out[:_MAX_PROBLEMS]),
            sha256=sha256,
        )

    def _convert(self, record: Any) -> dict[str, Any]:
        if not isinstance(record, Mapping):
            raise _NoPrompt("is not an object with columns")
        if None in record:  # where Python's CSV reader puts what it has no column for
            raise _Unusable("has more cells than the header")
        if self._format is None:
            self._format = _detect(record)
        record, others = _with_one_response(record)
        messages = [_message(role, content) for role, content in _TURNS[self._format](record)]
        response = messages.pop()["content"] if messages and messages[-1]["role"] == "assistant" else None
        answers = [text for text in (response, *others) if text and text.strip()]
        if not messages or messages[-1]["role"] != "user" or not messages[-1]["content"].strip():
            raise _NoPrompt("has no prompt")
        unique = list(dict.fromkeys(answers))
        row = {"messages": messages, "response": unique[0] if unique else None}
        return row | ({"references": unique[1:]} if unique[1:] else {})


def _detect(record: Row) -> Format:
    """The format that the first row's columns speak of; `prompt` also stands for `prompt_response` here."""
    if "messages" in record:
        return "messages"
    if "conversations" in record:
        return "sharegpt"
    if "instruction" in record:
        return "alpaca"
    if any(column in record for column in _PROMPT_COLUMNS):
        return "prompt"
    columns = ", ".join(str(column) for column in record) or "none"
    raise BadDataset(
        f"no known format: the first row's columns are {columns}; expected prompt (and response), messages, "
        "conversations, or instruction (and input, output)",
        FIELD,
    )


# --- from a row's columns to turns: (role, content) pairs, the response last ----------------------------------


def _prompt_turns(record: Row) -> Iterator[tuple[Any, Any]]:
    yield from _system_turn(record)
    yield "user", _first(record, _PROMPT_COLUMNS)
    yield "assistant", _first(record, _RESPONSE_COLUMNS)


def _alpaca_turns(record: Row) -> Iterator[tuple[Any, Any]]:
    instruction, context = record.get("instruction"), record.get("input")
    if isinstance(instruction, str) and isinstance(context, str) and context.strip():
        instruction = f"{instruction}\n\n{context}"
    yield from _system_turn(record)
    yield "user", instruction
    yield "assistant", record.get("output")


def _message_turns(record: Row) -> Iterator[tuple[Any, Any]]:
    turns = _turns_of(record, "messages")
    for turn in turns:
        yield turn.get("role"), turn.get("content")
    if turns[-1].get("role") == "user":  # a canonical row: what this module writes, it also reads
        yield "assistant", _first(record, _RESPONSE_COLUMNS)


def _sharegpt_turns(record: Row) -> Iterator[tuple[Any, Any]]:
    yield from _system_turn(record)
    for turn in _turns_of(record, "conversations"):
        speaker = turn.get("from")
        yield (_SHAREGPT_ROLES.get(speaker, speaker) if isinstance(speaker, str) else speaker), turn.get("value")


_TURNS: Mapping[Format, Callable[[Row], Iterator[tuple[Any, Any]]]] = {
    "prompt": _prompt_turns,
    "prompt_response": _prompt_turns,
    "messages": _message_turns,
    "alpaca": _alpaca_turns,
    "sharegpt": _sharegpt_turns,
}


def _with_one_response(record: Row) -> tuple[Row, list[str]]:
    """The record with one text where a response column has a list of them, and every other right answer: the list's
    rest, and the column `references`, a list of texts."""
    others = record.get("references") or []
    for column in _RESPONSE_COLUMNS:
        listed = record.get(column)
        if isinstance(listed, list):
            others = [*listed[1:], *others] if isinstance(others, list) else others
            record = {**record, column: listed[0] if listed else None}
    if not isinstance(others, list) or not all(isinstance(text, str) for text in others):
        raise _Unusable("references is not a list of texts")
    return record, [_message("assistant", text)["content"] for text in others]


def _system_turn(record: Row) -> Iterator[tuple[str, Any]]:
    if record.get("system"):
        yield "system", record["system"]


def _first(record: Row, columns: tuple[str, ...]) -> Any:
    return next((record[column] for column in columns if record.get(column) is not None), None)


def _turns_of(record: Row, column: str) -> list[Row]:
    turns = record.get(column)
    if not turns:
        raise _NoPrompt("has no prompt")
    if not isinstance(turns, list) or not all(isinstance(turn, Mapping) for turn in turns):
        raise _Unusable(f"{column} is not a list of turns")
    return turns


def _message(role: Any, content: Any) -> dict[str, str]:
    if not isinstance(role, str) or role not in _ROLES:
        raise _Unusable(f"the role {role!r} is none of {', '.join(_ROLES)}")
    if content is None:
        content = ""  # no prompt is refused, no response is written by the teacher
    if not isinstance(content, str):
        raise _Unusable(f"the {role}'s text is of type {type(content).__name__}")
    try:
        content.encode()
    except UnicodeEncodeError:
        raise _Unusable(f"the {role}'s text is not valid Unicode") from None
    return {"role": role, "content": content}


# --- from a file to numbered records ---------------------------------------------------------------------------


def _records(source: BinaryIO, name: str) -> Iterator[tuple[int, Any]]:
    """(1-based row, record); the file type is read off the content, and off the name where that says nothing."""
    start = source.read(4096)
    source.seek(0)
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text:
        raise BadDataset("the file is empty", FIELD)
    if start.startswith(b"PAR1"):
        return _parquet_records(source)
    if name.lower().endswith((".csv", ".tsv")):
        return _csv_records(source, "\t" if name.lower().endswith(".tsv") else ",")
    if text.startswith(b"["):
        return _json_records(source)
    if text.startswith(b"{"):
        return _jsonl_records(source)
    raise BadDataset(f"{name} is neither JSONL, a JSON array, CSV (.csv) nor Parquet", FIELD)


def _jsonl_records(source: BinaryIO) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(source, start=1):
        if line.strip():
            try:
                yield number, json.loads(line.decode("utf-8-sig"))
            except (ValueError, RecursionError) as error:
                raise BadDataset(f"row {number} is not JSON: {error}", FIELD) from error


def _json_records(source: BinaryIO) -> Iterator[tuple[int, Any]]:
    try:
        records = json.loads(source.read().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise BadDataset(f"the file is not a JSON array: {error}", FIELD) from error
    yield from enumerate(records, start=1)


def _csv_records(source: BinaryIO, delimiter: str) -> Iterator[tuple[int, Any]]:
    text = TextIOWrapper(source, encoding="utf-8-sig", newline="")
    try:
        # strict: a broken quote is an error rather than a strange row. Values stay text: "007" is no number here.
        yield from enumerate(csv.DictReader(text, delimiter=delimiter, strict=True), start=1)
    except (csv.Error, UnicodeDecodeError) as error:
        raise BadDataset(f"the file is not readable CSV: {error}", FIELD) from error
    finally:
        text.detach()  # the wrapper would close the caller's file


def _parquet_records(source: BinaryIO) -> Iterator[tuple[int, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        for batch in pq.ParquetFile(source).iter_batches(batch_size=1024):
            for record in batch.to_pylist():
                number += 1
                yield number, record
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise BadDataset(f"the file is not readable Parquet: {error}", FIELD) from error
