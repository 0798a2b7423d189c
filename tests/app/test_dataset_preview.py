"""What the page shows of a data set is what the trainer would feed the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.core.job_config import FileData
from app.core.preview_schemas import PreviewIn
from app.dataset_preview import histogram, preview
from tests.tiny_models import make_tokenizer
from worker.distill.assembly import ground_truth
from worker.distill.data import PromptEncoder, read_rows
from worker.distill.types import make_batch

ROWS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "the dog"}], "response": "sings 🦙"},
    {"messages": [{"role": "user", "content": "the birds " * 40}], "response": None},
    {"messages": [{"role": "user", "content": "a"}], "response": "the small brown dog sees green birds " * 3},
]


def lines(rows: list[dict[str, Any]] = ROWS) -> list[bytes]:
    return [json.dumps(row).encode() for row in rows]


def asked(teacher: Path, **fields: Any) -> PreviewIn:
    return PreviewIn.model_validate({"teacher": str(teacher)} | fields)


def test_ids_and_mask_are_the_trainers_own(tiny_teacher: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"\n".join(lines()))
    tokenizer = make_tokenizer()
    encoder = PromptEncoder(tokenizer, template="chat", eos_ids=frozenset({tokenizer.eos_token_id}))
    config = FileData(path=file, max_prompt_tokens=900, max_response_tokens=16)
    for number, row in enumerate(read_rows(config, encoder), start=1):
        shown = preview(lines(), asked(tiny_teacher, row=number, max_response_tokens=16)).tokens
        batch = make_batch(ground_truth([row]), pairs=None, pad_id=0, device="cpu")  # type: ignore[arg-type]
        assert [token.id for token in shown] == batch.input_ids_BT[0].tolist()
        assert [token.in_loss for token in shown] == [False] * len(row.prompt_ids) + [True] * len(
            row.response_ids or ()
        )
        assert sum(token.in_loss for token in shown) == batch.num_positions


def test_text_of_the_pieces_is_the_rows_text_with_its_template(tiny_teacher: Path) -> None:
    shown = preview(lines([ROWS[2]]), asked(tiny_teacher)).tokens
    assert "".join(token.text for token in shown).startswith("<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n")
    assert shown[-1].text == "<|im_end|>"


def test_what_is_cut_or_too_long_is_counted(tiny_teacher: Path) -> None:
    found = preview(lines(), asked(tiny_teacher, row=3, max_prompt_tokens=50, max_response_tokens=4))
    assert (found.too_long, found.too_long_count, found.cut_count, found.is_cut) == ([2], 1, 2, True)
    assert sum(token.in_loss for token in found.tokens) == 4
    assert found.rows_read == 3
    assert sum(found.prompt_lengths.counts) == 3
    assert found.response_lengths is not None
    assert sum(found.response_lengths.counts) == 2


def test_responses_that_the_teacher_will_write_are_not_shown(tiny_teacher: Path) -> None:
    assert any(token.in_loss for token in preview(lines(), asked(tiny_teacher, responses="student")).tokens)
    found = preview(lines(), asked(tiny_teacher, responses="teacher"))
    assert not any(token.in_loss for token in found.tokens)
    assert found.response_lengths is None


@pytest.mark.parametrize("lengths", [[0], [5], [1, 2, 3], [7, 700, 24, 24], list(range(1000))])
def test_every_length_is_in_its_bin(lengths: list[int]) -> None:
    found = histogram(lengths)
    assert len(found.edges) == len(found.counts) + 1 <= 25
    for low, high, count in zip(found.edges, found.edges[1:], found.counts, strict=False):
        assert count == sum(low <= length < high for length in lengths)
    assert (found.shortest, found.longest) == (min(lengths), max(lengths))


def upload(client: TestClient, rows: list[dict[str, Any]] = ROWS) -> str:
    return client.post("/v1/datasets", files={"file": ("a.jsonl", b"\n".join(lines(rows)))}).json()["id"]


def test_rows_and_preview_over_http(client: TestClient, tiny_teacher: Path) -> None:
    dataset = upload(client)
    page = client.get(f"/v1/datasets/{dataset}/rows", params={"limit": 2}).json()
    assert ([row["response"] for row in page["data"]], page["has_more"]) == (["sings 🦙", None], True)
    answer = client.post(f"/v1/datasets/{dataset}/preview", json={"teacher": str(tiny_teacher)})
    assert (answer.status_code, answer.json()["rows_read"]) == (200, 3)


@pytest.mark.parametrize(
    ("fields", "code", "loc"),
    [
        ({"teacher": "/no/such/folder"}, "model_not_found", ["teacher"]),
        ({"row": 9}, "bad_dataset", ["row"]),
        ({"template": "haiku"}, "invalid_request", ["template"]),
    ],
)
def test_a_preview_that_cannot_be_made_names_the_field(
    client: TestClient, tiny_teacher: Path, fields: dict[str, Any], code: str, loc: list[str]
) -> None:
    answer = client.post(f"/v1/datasets/{upload(client)}/preview", json={"teacher": str(tiny_teacher)} | fields)
    assert (answer.status_code, answer.json()["code"], answer.json()["errors"][0]["loc"]) == (422, code, loc)


def test_an_unknown_data_set_and_lost_rows_are_404(client: TestClient, services: Any, tiny_teacher: Path) -> None:
    request = {"teacher": str(tiny_teacher)}
    assert client.post("/v1/datasets/ds_none/preview", json=request).status_code == 404
    dataset = upload(client)
    services.store.delete(f"datasets/{dataset}.jsonl")
    assert client.post(f"/v1/datasets/{dataset}/preview", json=request).status_code == 404
    assert client.get(f"/v1/datasets/{dataset}/rows").status_code == 404
