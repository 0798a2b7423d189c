"""Downloads through the page's own server: passed on as they arrive, refusals as text."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.testclient import TestClient

from tests.ui.conftest import SeededService
from ui.client import StillhouseClient
from ui.downloads import batch_url, model_url, routes


def client_of(api: StillhouseClient) -> TestClient:
    return TestClient(Starlette(routes=routes(api)))


def test_a_batchs_table_is_passed_on(api: StillhouseClient, seeded: SeededService) -> None:
    client = client_of(api)
    csv = client.get(batch_url(seeded.ids.batch, "csv"))
    assert csv.text.startswith("row,status,prompt")
    assert f"{seeded.ids.batch}.csv" in csv.headers["content-disposition"]
    assert len(client.get(batch_url(seeded.ids.batch, "jsonl")).text.splitlines()) == 3


def test_refusals_and_strange_ids_are_told(api: StillhouseClient, nobody: StillhouseClient) -> None:
    client = client_of(api)
    assert client.get(model_url("mdl_none")).status_code == 404
    assert client.get(batch_url("..%2Fjobs", "csv")).status_code == 404
    assert client_of(nobody).get(model_url("mdl_1")).status_code == 503
