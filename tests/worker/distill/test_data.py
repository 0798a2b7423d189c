"""Rows to ids: templates, the end token, refusals by row number, the split and the order of visits."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import BadDataset, ContextTooShort
from app.core.job_config import FileData
from tests.tiny_models import make_tokenizer
from worker.distill.data import PromptEncoder, Row, RowOrder, check_context, read_rows, split

EOS = 2


def write(path: Path, *rows: Any) -> FileData:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return FileData(path=path)


def user(text: str, response: str | None = None) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "response": response}


@pytest.fixture
def encoder() -> PromptEncoder:
    return PromptEncoder(make_tokenizer(), template="chat", eos_ids=frozenset({EOS}))


def test_chat_rows_use_the_tokenizers_template_and_end_with_its_end_of_turn(
    encoder: PromptEncoder, tmp_path: Path
) -> None:
    [row] = read_rows(write(tmp_path / "a.jsonl", user("the dog", "sings")), encoder)
    tokenizer = make_tokenizer()
    assert tokenizer.decode(row.prompt_ids) == "<|im_start|>user\nthe dog<|im_end|>\n<|im_start|>assistant\n"
    assert row.response_ids is not None
    assert row.response_ids[-1] == EOS
    assert tokenizer.decode(row.response_ids[:-1]) == "sings"


def test_a_row_may_have_several_right_answers_of_which_the_response_is_trained_on(
    encoder: PromptEncoder, tmp_path: Path
) -> None:
    rows = read_rows(
        write(
            tmp_path / "a.jsonl",
            user("2 + 2", "4") | {"references": ["four", "4"]},
            user("3 + 3") | {"references": ["6", "six"]},
            user("4 + 4"),
        ),
        encoder,
    )
    assert [row.references for row in rows] == [("4", "four"), ("6", "six"), ()]
    assert [row.response_ids and encoder.text(row.response_ids) for row in rows] == ["4", "6", None]


@pytest.mark.parametrize("references", ["four", [4], {"a": "b"}])
def test_references_that_are_no_list_of_texts_are_refused(
    encoder: PromptEncoder, tmp_path: Path, references: Any
) -> None:
    with pytest.raises(BadDataset, match="row 1: references"):
        read_rows(write(tmp_path / "a.jsonl", user("2 + 2", "4") | {"references": references}), encoder)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "no rows"),
        ([user("the dog"), {"messages": []}], "row 2"),
        ([user("the dog"), {"prompt": "x"}], "row 2"),
        ([user("the dog"), user("   ")], "row 2 has an empty prompt"),
        (["{broken"], "row 1"),
        ([user("the dog"), user("the " * 600)], r"row 2: the prompt has \d+ tokens.*max_prompt_tokens"),
    ],
)
def test_rows_that_cannot_be_used_are_refused_by_number(
    encoder: PromptEncoder, tmp_path: Path, rows: list[Any], words: str
) -> None:
    with pytest.raises(BadDataset, match=words):
        read_rows(write(tmp_path / "a.jsonl", *rows), encoder)


def test_a_missing_file_is_named(encoder: PromptEncoder, tmp_path: Path) -> None:
    with pytest.raises(BadDataset, match=r"nothing\.jsonl"):
        read_rows(FileData(path=tmp_path / "nothing.jsonl"), encoder)


def test_given_responses_stay_as_references_when_the_teacher_writes_what_is_trained_on(
    encoder: PromptEncoder, tmp_path: Path
) -> None:
    data = write(tmp_path / "a.jsonl", user("the dog", "sings")).model_copy(update={"responses": "teacher"})
    [row] = read_rows(data, encoder)
    assert (row.response_ids, row.reference) == (None, "sings")


def test_context_counts_prompt_and_longest_response() -> None:
    rows = [Row(1, "", (1,) * 10, "", (1,) * 5), Row(2, "", (1,) * 20, "", (1,) * 30)]
    check_context(rows, context=50, max_new_tokens=30, max_response_tokens=99)
    with pytest.raises(ContextTooShort, match=r"row 2.*need 50 tokens.*have 49"):
        check_context(rows, context=49, max_new_tokens=30, max_response_tokens=99)
    with pytest.raises(ContextTooShort, match="row 1"):
        check_context(rows, context=40, max_new_tokens=31, max_response_tokens=99)


def test_split_holds_out_the_end_and_leaves_something(encoder: PromptEncoder) -> None:
    rows = [Row(i, "", (1,), None, None) for i in range(1, 6)]
    train, dev = split(rows, dev_rows=2)
    assert [row.number for row in train] == [1, 2, 3]
    assert [row.number for row in dev] == [4, 5]
    with pytest.raises(BadDataset, match="dev_rows"):
        split(rows, dev_rows=5)


def test_every_pass_visits_every_row_once_in_a_new_order() -> None:
    rows = [Row(i, "", (1,), None, None) for i in range(10)]
    order = RowOrder(rows, seed=4)
    passes = [[row.number for _ in range(5) for row in order.take(2)] for _ in range(2)]
    assert all(Counter(numbers) == Counter(range(10)) for numbers in passes)
    assert passes[0] != passes[1]
    assert [row.number for row in RowOrder(rows, seed=4).take(10)] == passes[0]


@pytest.mark.parametrize(("rows", "size"), [(400, 8), (403, 8), (7, 8), (3, 8), (50, 1)])
def test_rows_of_like_length_come_together_and_every_pass_has_every_row_once(rows: int, size: int) -> None:
    """Also where a batch begins in one pass and ends in the next."""
    lengths = random.Random(1).choices(range(1, 200), k=rows)
    data = [Row(i, "", (1,) * n, None, None) for i, n in enumerate(lengths)]
    order = RowOrder(data, seed=4, alike=size)
    batches = [order.take(size) for _ in range(5 * rows // size + 5)]
    numbers = [row.number for batch in batches for row in batch]
    passes = [numbers[start : start + rows] for start in range(0, len(numbers) - rows + 1, rows)]
    assert all(sorted(one) == list(range(rows)) for one in passes)
    assert passes[0] != passes[1] or rows < size
    again = RowOrder(data, seed=4, alike=size)
    assert [again.take(size) for _ in range(5)] == batches[:5]
    if rows > 399:
        plain = RowOrder(data, seed=4)
        assert padding(batches) < padding([plain.take(size) for _ in batches]) / 3
        longest = [max(len(row.prompt_ids) for row in batch) for batch in batches[: rows // size]]
        assert longest not in (sorted(longest), sorted(longest, reverse=True))


def padding(batches: list[list[Row]]) -> float:
    """Share of padding, when each batch is as wide as its longest row."""
    real = sum(len(row.prompt_ids) for batch in batches for row in batch)
    return 1 - real / sum(len(batch) * max(len(row.prompt_ids) for row in batch) for batch in batches)


@pytest.mark.parametrize("alike", [None, 4])
def test_an_order_goes_on_from_its_state(alike: int | None) -> None:
    data = [Row(i, "", (1,) * (1 + i % 7), None, None) for i in range(22)]
    one, other = (RowOrder(data, seed=4, alike=alike) for _ in range(2))
    for _ in range(9):
        one.take(4)
        other.load(json.loads(json.dumps(one.state())))
        expected = [one.take(4) for _ in range(8)]
        assert [other.take(4) for _ in range(8)] == expected
