from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import gradio as gr

from ui.client import StillhouseClient
from ui.layout import build_ui, from_address
from ui.tabs.table import TABS


def test_the_page_builds_without_an_api(nobody: StillhouseClient) -> None:
    blocks = build_ui(nobody)
    tabs = [block for block in blocks.blocks.values() if isinstance(block, gr.Tab)]
    assert {spec.label for spec in TABS} <= {tab.label for tab in tabs}
    assert not blocks.analytics_enabled


def test_every_input_has_a_label(nobody: StillhouseClient) -> None:
    for block in build_ui(nobody).blocks.values():
        if isinstance(block, gr.Textbox | gr.Number | gr.Dropdown | gr.Radio | gr.Slider):
            assert block.label


def test_nothing_is_a_public_endpoint(nobody: StillhouseClient) -> None:
    assert build_ui(nobody).get_api_info()["named_endpoints"] == {}


def opened_at(**query: str) -> tuple[Any, str, str]:
    return from_address(cast(gr.Request, SimpleNamespace(query_params=query)))


def test_address_names_tab_job_and_comparison() -> None:
    tabs, job, comparison = opened_at(tab="compare", job="job_1", cmp="cmp_1")
    assert (tabs.selected, job, comparison) == ("compare", "job_1", "cmp_1")


def test_an_unknown_tab_opens_the_first() -> None:
    assert opened_at(tab="<script>") == (gr.skip(), "", "")
