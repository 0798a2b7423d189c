"""Uploads over HTTP: what is stored, and what is refused."""

from __future__ import annotations

import json

import pytest
from fastapi.testclient import TestClient

from app.deps import Services


def test_an_upload_is_stored_as_canonical_rows(client: TestClient, services: Services) -> None:
    content = "prompt,response\nWhat is 2 + 2?,4\nWho?,\n"
    answer = client.post("/v1/datasets", files={"file": ("sums.csv", content)}, data={"name": "sums"})
    assert answer.status_code == 201
    dataset = answer.json()
    expected = {"name": "sums", "format": "prompt_response", "rows": 2, "rows_with_response": 1, "problems": []}
    assert {key: dataset[key] for key in expected} == expected
    rows = services.store.local_path(f"datasets/{dataset['id']}.jsonl").read_text().splitlines()
    assert json.loads(rows[0]) == {"messages": [{"role": "user", "content": "What is 2 + 2?"}], "response": "4"}
    assert client.get(f"/v1/datasets/{dataset['id']}").json() == dataset


def test_the_file_name_is_the_default_name(client: TestClient) -> None:
    answer = client.post("/v1/datasets", files={"file": ("mine.jsonl", '{"prompt": "a"}')})
    assert answer.json()["name"] == "mine.jsonl"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        ("[]", "no usable row"),
        ('{"prompt": "a"}\n{"response": "b"}\n', "row 2 has no prompt"),
    ],
)
def test_bad_files_are_refused_with_a_reason(client: TestClient, content: str, message: str) -> None:
    answer = client.post("/v1/datasets", files={"file": ("x.jsonl", content)})
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["code"] == "bad_dataset"
    assert problem["errors"][0]["loc"] == ["file"]
    assert message in problem["errors"][0]["msg"]
    assert client.get("/v1/datasets").json() == {"data": [], "has_more": False}


def test_rows_that_were_left_out_are_listed(client: TestClient) -> None:
    rows = [{"messages": [{"role": "user", "content": "a"}]}, {"messages": [{"role": "tool", "content": "a"}]}]
    answer = client.post("/v1/datasets", files={"file": ("x.json", json.dumps(rows))})
    assert answer.status_code == 201
    assert [problem["row"] for problem in answer.json()["problems"]] == [2]


def test_a_file_beyond_the_limit_is_413(client: TestClient, services: Services) -> None:
    content = b'{"prompt": "a"}\n' * (services.max_upload_bytes // 16 + 1)
    answer = client.post("/v1/datasets", files={"file": ("x.jsonl", content)})
    assert (answer.status_code, answer.json()["status"]) == (413, 413)
    assert "1 MiB" in answer.json()["detail"]


def test_a_body_without_declared_length_is_limited_too(client: TestClient, services: Services) -> None:
    def chunks() -> object:
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
        for _ in range(services.max_upload_bytes // 2**16 + 1):
            yield b"x" * 2**16

    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    answer = client.post("/v1/datasets", content=chunks(), headers=headers)  # type: ignore[arg-type]
    assert answer.status_code == 413


def test_a_request_without_file_is_422(client: TestClient) -> None:
    answer = client.post("/v1/datasets", data={"name": "x"})
    assert (answer.status_code, answer.json()["errors"][0]["loc"]) == (422, ["file"])


def test_pages(client: TestClient) -> None:
    for i in range(3):
        client.post("/v1/datasets", files={"file": (f"{i}.jsonl", '{"prompt": "a"}')})
    first = client.get("/v1/datasets", params={"limit": 2}).json()
    rest = client.get("/v1/datasets", params={"limit": 2, "after": first["data"][-1]["id"]}).json()
    ids = [dataset["id"] for dataset in first["data"] + rest["data"]]
    assert ids == sorted(ids, reverse=True)
    assert len(set(ids)) == 3
    assert (first["has_more"], rest["has_more"]) == (True, False)


def test_an_unknown_data_set_is_404(client: TestClient) -> None:
    answer = client.get("/v1/datasets/ds_none")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
