from __future__ import annotations

import json

import plotly.graph_objects as go
import pytest

from app.core.schemas import MetricsOut, Series
from ui.charts import CHARTS, Chart
from ui.plots import charts_value, figure, plotly_script

TWO = [Series(name="loss/total", points=[(1, 3.0), (2, 2.5)]), Series(name="loss/sft", points=[(1, 2.0), (2, 1.5)])]


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.key)
def test_plotly_accepts_every_kind_of_chart(chart: Chart) -> None:
    drawn = figure(chart, TWO, revision="job_1")
    go.Figure(data=drawn["data"], layout=drawn["layout"])  # raises on a property that plotly does not know


def test_points_are_in_the_figure_and_colour_is_not_the_only_sign() -> None:
    first, second = figure(CHARTS[0], TWO, revision="job_1")["data"]
    assert (first["name"], first["x"], first["y"]) == ("total", [1, 2], [3.0, 2.5])
    assert first["line"]["dash"] != second["line"]["dash"]


def test_the_readers_zoom_lasts_as_long_as_the_job() -> None:
    layouts = [figure(CHARTS[0], TWO, revision=job)["layout"]["uirevision"] for job in ("job_1", "job_1", "job_2")]
    assert layouts[0] == layouts[1] != layouts[2]


def test_no_button_sends_data_away() -> None:
    config = figure(CHARTS[0], TWO, revision="job_1")["config"]
    assert {button for group in config["modeBarButtons"] for button in group} == {
        "toImage",
        "zoom2d",
        "pan2d",
        "resetScale2d",
    }
    assert config["displaylogo"] is False


def test_value_is_json_with_words_and_figures() -> None:
    (chart,) = json.loads(charts_value(MetricsOut(series=TWO), revision="job_1"))
    assert (chart["key"], chart["title"]) == ("loss", "Training losses")
    assert len(chart["data"]) == 2
    assert json.loads(charts_value(MetricsOut(series=()), revision="job_1")) == []


def test_plotly_js_is_on_this_machine() -> None:
    assert plotly_script().stat().st_size > 1_000_000
