from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import gradio as gr
import pytest

from tests.ui.conftest import SeededService
from ui.client import StillhouseClient
from ui.tabs import jobs
from ui.views.jobs import NO_MATCH


def shown(api: StillhouseClient, **wanted: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {"chosen": "", "status": "", "q": "", "trail": [], "now": datetime.now(UTC)}
    return jobs.show(api, **(asked | wanted))


def test_filter_and_search_are_the_apis(api: StillhouseClient, seeded: SeededService) -> None:
    assert shown(api, status="failed")["table"].count("<tr data-key=") == 1
    found = shown(api, q=" 12 LAYERS ")
    assert seeded.ids.running in found["table"]
    assert found["table"].count("<tr data-key=") == 1
    assert shown(api, q="nothing is called so")["table"] == NO_MATCH


def test_pages_go_on_behind_the_last_job_and_back(
    api: StillhouseClient, seeded: SeededService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "PAGE_SIZE", 2)
    first = shown(api)
    assert first["pager"].visible
    assert (first["newer"].interactive, first["older"].interactive) == (False, True)
    assert "Jobs 1 to 2" in first["where"]
    second = shown(api, trail=[first["last"]])
    assert (second["newer"].interactive, second["older"].interactive) == (True, True)
    assert "Jobs 3 to 4" in second["where"]
    assert seeded.ids.queued in first["table"]
    assert seeded.ids.queued not in second["table"]


def test_one_page_needs_no_pager(api: StillhouseClient) -> None:
    assert not shown(api)["pager"].visible


def test_an_api_that_is_away_leaves_the_list_under_a_banner(nobody: StillhouseClient) -> None:
    found = shown(nobody)
    assert "does not answer" in found["banner"]
    assert "table" not in found


def test_a_search_that_the_api_refuses_is_said(api: StillhouseClient) -> None:
    assert "cannot be shown" in shown(api, q="x" * 300)["note"]


@pytest.mark.parametrize(("status", "taken"), [("running", "running"), ("<script>", "")])
def test_filters_come_from_the_address(status: str, taken: str) -> None:
    request = cast(gr.Request, SimpleNamespace(query_params={"status": status, "q": "sky"}))
    assert jobs.from_address(request) == (taken, "sky")
