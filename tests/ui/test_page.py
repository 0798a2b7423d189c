from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import gradio as gr
import pytest

from ui.page import is_open_at, live_html, named


@pytest.mark.parametrize(("query", "is_open"), [({"tab": "models"}, True), ({"tab": "jobs"}, False), ({}, False)])
def test_a_tab_is_open_where_the_address_names_it(query: dict[str, str], is_open: bool) -> None:
    assert is_open_at(cast(gr.Request, SimpleNamespace(query_params=query)), "models") is is_open


def test_values_go_to_their_parts_and_the_others_keep_theirs() -> None:
    parts = {"a": object(), "b": object()}
    assert named(parts, {"b": ""}) == {parts["b"]: ""}
    with pytest.raises(KeyError):
        named(parts, {"c": 1})


def test_no_values_are_no_change_and_not_one_value_that_is_empty() -> None:
    """Gradio gives an empty dictionary to the only output, or complains that there are several."""
    with gr.Blocks():
        first, second = gr.Textbox(), gr.Textbox()
    (change,) = named({"first": first, "second": second}, {}).items()
    assert change == (first, gr.skip())


def test_live_html_is_drawn_by_the_pages_script_alone() -> None:
    """Gradio's own drawing would put the new in place of the old, and with it the reader's focus."""
    with gr.Blocks():
        shown = live_html("<b>now</b>", elem_id="here", js_on_load="more();")
    config = shown.get_config()
    assert config["html_template"] == '<div class="sh-live"></div>'
    assert config["js_on_load"].endswith("watch);more();")
