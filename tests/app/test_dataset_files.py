"""Every file type and format becomes the same canonical rows; what cannot is refused by row."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.errors import BadDataset
from app.dataset_files import Normalised, normalise

QUESTION = {"role": "user", "content": "What is 2 + 2?"}
SYSTEM = {"role": "system", "content": "Be brief."}
EARLIER = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
SHAREGPT = [
    {"from": "system", "value": "Be brief."},
    {"from": "human", "value": "What is 2 + 2?"},
    {"from": "gpt", "value": "4"},
]


def read(content: bytes | str, name: str, folder: Path) -> tuple[Normalised, list[dict[str, Any]]]:
    raw = content.encode() if isinstance(content, str) else content
    target = folder / "rows.jsonl"
    found = normalise(io.BytesIO(raw), name, target)
    assert found.sha256 == hashlib.sha256(target.read_bytes()).hexdigest()
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert len(rows) == found.rows
    return found, rows


def jsonl(*records: Any) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.mark.parametrize(
    ("record", "format", "messages"),
    [
        ({"prompt": "What is 2 + 2?", "response": "4"}, "prompt_response", [QUESTION]),
        ({"question": "What is 2 + 2?", "answer": "4"}, "prompt_response", [QUESTION]),
        ({"system": "Be brief.", "prompt": "What is 2 + 2?", "completion": "4"}, "prompt_response", [SYSTEM, QUESTION]),
        ({"messages": [*EARLIER, QUESTION, {"role": "assistant", "content": "4"}]}, "messages", [*EARLIER, QUESTION]),
        ({"messages": [*EARLIER, QUESTION], "response": "4"}, "messages", [*EARLIER, QUESTION]),
        ({"instruction": "What is 2 + 2?", "input": "", "output": "4"}, "alpaca", [QUESTION]),
        (
            {"instruction": "Add.", "input": "2 and 2", "output": "4"},
            "alpaca",
            [{"role": "user", "content": "Add.\n\n2 and 2"}],
        ),
        ({"conversations": SHAREGPT}, "sharegpt", [SYSTEM, QUESTION]),
    ],
)
@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet"])
def test_formats(record: dict[str, Any], format: str, messages: list[Any], kind: str, tmp_path: Path) -> None:
    if kind == "parquet":
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_pylist([record] * 3), sink)
        content: bytes | str = sink.getvalue()
    else:
        content = jsonl(*[record] * 3) if kind == "jsonl" else json.dumps([record] * 3, indent=1)
    found, rows = read(content, f"data.{kind}", tmp_path)
    assert (found.format, found.rows, found.rows_with_response, found.problems) == (format, 3, 3, ())
    assert rows[0] == {"messages": messages, "response": "4"}


@pytest.mark.parametrize(
    ("answers", "response", "others"),
    [
        ({"response": "4", "references": ["four", "4", " "]}, "4", ["four"]),
        ({"answer": ["4", "four", "IV"]}, "4", ["four", "IV"]),
        ({"output": ["4"], "references": ["four"]}, "4", ["four"]),
        ({"references": ["four", "IV"]}, "four", ["IV"]),
        ({"response": None, "references": []}, None, []),
        ({"response": [], "references": None}, None, []),
    ],
)
def test_a_row_may_have_several_right_answers(
    answers: dict[str, Any], response: str | None, others: list[str], tmp_path: Path
) -> None:
    """The first is trained on; answers are measured against the best of all. What is written is read again alike."""
    found, (row,) = read(jsonl({"prompt": "What is 2 + 2?"} | answers), "rows.jsonl", tmp_path)
    assert (row["response"], row.get("references", [])) == (response, others)
    assert found.rows_with_response == (response is not None)
    assert read(jsonl(row), "rows.jsonl", tmp_path)[1] == [row]


def test_references_that_are_no_texts_are_left_out_and_reported(tmp_path: Path) -> None:
    bad: list[Any] = ["one text", [1], [None], {"a": "b"}]
    records = [{"prompt": "p", "references": references} for references in bad] + [{"prompt": "p", "answer": ["a", 2]}]
    found, rows = read(jsonl({"prompt": "good"}, *records), "rows.jsonl", tmp_path)
    assert len(rows) == 1
    assert [problem.row for problem in found.problems] == [2, 3, 4, 5, 6]
    assert {problem.message for problem in found.problems} == {"references is not a list of texts"}


def test_csv_keeps_text_as_text(tmp_path: Path) -> None:
    content = '\ufeffprompt,response\r\n"Line one\nline ""two""",007\r\nWhat?,\r\n'
    found, rows = read(content, "data.csv", tmp_path)
    assert (found.format, found.rows, found.rows_with_response) == ("prompt_response", 2, 1)
    assert rows[0]["messages"][0]["content"] == 'Line one\nline "two"'
    assert (rows[0]["response"], rows[1]["response"]) == ("007", None)


def test_tab_separated_values(tmp_path: Path) -> None:
    _, rows = read("prompt\tresponse\na, b\tc\n", "data.tsv", tmp_path)
    assert rows == [{"messages": [{"role": "user", "content": "a, b"}], "response": "c"}]


def test_prompts_without_responses(tmp_path: Path) -> None:
    found, rows = read(jsonl({"prompt": "a"}, {"prompt": "b", "response": " "}), "x.jsonl", tmp_path)
    assert (found.format, found.rows_with_response) == ("prompt", 0)
    assert [row["response"] for row in rows] == [None, None]


def test_the_first_row_may_lack_a_response(tmp_path: Path) -> None:
    found, _ = read(jsonl({"prompt": "a"}, {"prompt": "b", "response": "c"}), "x.jsonl", tmp_path)
    assert (found.format, found.rows, found.rows_with_response) == ("prompt_response", 2, 1)


def test_a_conversation_that_ends_with_the_user_waits_for_its_answer(tmp_path: Path) -> None:
    _, rows = read(jsonl({"messages": [*EARLIER, QUESTION]}), "x.jsonl", tmp_path)
    assert rows == [{"messages": [*EARLIER, QUESTION], "response": None}]


@pytest.mark.parametrize(
    "row",
    [
        {"response": "4"},
        {"prompt": None},
        {"prompt": "  \n"},
        {"prompt": ""},
        "just text",
        None,
    ],
)
def test_a_row_without_prompt_is_refused_by_number(row: Any, tmp_path: Path) -> None:
    with pytest.raises(BadDataset, match=r"row 3 (has no prompt|is not an object)") as caught:
        read(jsonl({"prompt": "a"}, {"prompt": "b"}, row, {"prompt": "c"}), "x.jsonl", tmp_path)
    assert caught.value.field == "file"


@pytest.mark.parametrize(
    "record",
    [
        {"messages": []},
        {"messages": [SYSTEM]},
        {"messages": [{"role": "assistant", "content": "4"}]},
        {"messages": [{"role": "user", "content": ""}, {"role": "assistant", "content": "4"}]},
        {"conversations": None},
        {"conversations": [{"from": "gpt", "value": "4"}]},
        {"instruction": "", "input": "", "output": "4"},
    ],
)
def test_conversations_without_prompt_are_refused(record: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(BadDataset, match="row 1 has no prompt"):
        read(jsonl(record), "x.jsonl", tmp_path)


def test_a_refusal_names_the_first_ten_rows(tmp_path: Path) -> None:
    with pytest.raises(BadDataset) as caught:
        read(jsonl({"prompt": "a"}, *[{"prompt": ""}] * 50), "x.jsonl", tmp_path)
    assert caught.value.message.count("has no prompt") == 10
    assert "row 2 has" in caught.value.message


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"messages": [QUESTION, {"role": "tool", "content": "4"}]}, "the role 'tool'"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "of type list"),
        ({"messages": "user: hi"}, "not a list of turns"),
        ({"messages": [{"role": ["user"], "content": "hi"}]}, "the role"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "not valid Unicode"),
    ],
)
def test_unusable_rows_are_left_out_and_reported(record: dict[str, Any], message: str, tmp_path: Path) -> None:
    found, rows = read(jsonl({"messages": [QUESTION]}, record, {"messages": [QUESTION]}), "x.jsonl", tmp_path)
    assert len(rows) == 2
    assert [problem.row for problem in found.problems] == [2]
    assert message in found.problems[0].message


def test_a_row_with_too_many_cells_is_left_out(tmp_path: Path) -> None:
    found, rows = read("prompt,response\na,b\nc,d,e\n", "x.csv", tmp_path)
    assert len(rows) == 1
    assert found.problems[0].row == 2


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ("", "x.jsonl", "empty"),
        (" \n\n", "x.jsonl", "empty"),
        ("[]", "x.json", "no usable row"),
        ("prompt,response\n", "x.csv", "no usable row"),
        ('{"messages": "x"}\n', "x.jsonl", r"no usable row: .*row 1"),
        ('{"prompt": "a"}\n{"prompt": \n', "x.jsonl", "row 2 is not JSON"),
        ('[{"prompt": "a"}', "x.json", "not a JSON array"),
        ('{"text": "a"}\n', "x.jsonl", "first row's columns are text"),
        ("hello", "x.txt", "neither JSONL"),
        ('prompt\n"open', "x.csv", "not readable CSV"),
        (b"prompt\n\xff\xfe\n", "x.csv", "not readable CSV"),
        (b'{"prompt": "\xff"}\n', "x.jsonl", "row 1 is not JSON"),
        (b"PAR1 nonsense", "x.parquet", "not readable Parquet"),
        ("[" * 100_000, "x.json", "not a JSON array"),
    ],
)
def test_unreadable_files_are_refused(content: bytes | str, name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadDataset, match=message) as caught:
        read(content, name, tmp_path)
    assert caught.value.field == "file"


@given(content=st.binary(max_size=200), name=st.sampled_from(["x.csv", "x.jsonl", "x"]))
def test_arbitrary_bytes_are_read_or_refused(
    content: bytes, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    for prefix in (b"", b"prompt,response\n", b'{"prompt": ', b"[", b"PAR1"):
        with contextlib.suppress(BadDataset):  # anything else fails the test
            read(prefix + content, name, folder)
