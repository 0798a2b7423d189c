"""A batch's rows as they come from a data set's file and go out as a table: order, CSV and JSONL.

Knows canonical rows and text formats. Does not know the database or HTTP.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from app.core.compare_schemas import BatchRow
from app.core.db.batches import DataRow
from app.core.errors import NotFound
from app.core.storage import ArtifactStore

MEDIA_TYPES = {"csv": "text/csv; charset=utf-8", "jsonl": "application/jsonl"}
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_COLUMNS = (
    "row", "status", "prompt", "reference", "model_id", "answer", "tokens", "finish", "rouge_l", "kl", "verdict",
    "tokens_per_s", "weights_sha256",
)  # fmt: skip


def read_rows(store: ArtifactStore, key: str, *, limit: int) -> list[DataRow]:
    """The first `limit` canonical rows. Raises NotFound when the file is gone."""
    rows: list[DataRow] = []
    try:
        with store.open(key) as lines:
            for line in lines:
                if len(rows) == limit:
                    break
                if line.strip():
                    raw = json.loads(line)
                    rows.append(DataRow(messages=raw["messages"], reference=raw.get("response") or None))
    except FileNotFoundError as error:
        raise NotFound("the rows of this data set are not in the artifact store; upload it again") from error
    return rows


def ordered(rows: Sequence[BatchRow], sort: Literal["row", "kl", "rouge_l"]) -> list[BatchRow]:
    """By the data's order, or the row first where a student did worst; rows without the score last."""
    if sort == "row":
        return list(rows)
    return sorted(rows, key=lambda row: (_worst(row, sort) is None, -(_worst(row, sort) or 0.0), row.row))


def _worst(row: BatchRow, sort: Literal["kl", "rouge_l"]) -> float | None:
    """How bad the row's worst student is: its KL, or the negative ROUGE-L. The teacher is the one without a KL; where
    no model has one, every model counts."""
    students = [score for score in row.scores if score.kl is not None] or row.scores
    values = [score.kl for score in students] if sort == "kl" else [score.rouge_l for score in students]
    found = [value if sort == "kl" else -value for value in values if value is not None]
    return max(found, default=None)


def as_jsonl(rows: Sequence[BatchRow]) -> Iterator[str]:
    for row in rows:
        yield row.model_dump_json() + "\n"


def as_csv(rows: Sequence[BatchRow]) -> Iterator[str]:
    """One line per answer. A text that a spreadsheet would take for a formula gets an apostrophe in front (OWASP, CSV
    Injection); JSONL has the exact text."""
    yield _line(_COLUMNS)
    for row in rows:
        scores = {score.model_id: score for score in row.scores}
        verdicts = {verdict.model_id: verdict.outcome for verdict in row.verdicts}
        for answer in row.answers:
            score = scores.get(answer.model_id)
            facts = (row.row, row.status, row.prompt, row.reference, answer.model_id, answer.text, answer.tokens)
            measured = (score and score.rouge_l, score and score.kl, verdicts.get(answer.model_id))
            yield _line((*facts, answer.finish, *measured, answer.tokens_per_s, answer.weights_sha256))


def _line(values: Sequence[Any]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer).writerow([_harmless(value) for value in values])
    return buffer.getvalue()


def _harmless(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
