from __future__ import annotations

import json
from collections.abc import Sequence

import plotly.graph_objects as go
import pytest

from app.core.schemas import MetricsOut, Series
from ui.charts import CHARTS, Chart
from ui.plots import Line, Run, charts_value, figure, histogram, plotly_script

TWO = [Series(name="loss/total", points=[(1, 3.0), (2, 2.5)]), Series(name="loss/sft", points=[(1, 2.0), (2, 1.5)])]


def run(job_id: str = "job_1", series: Sequence[Series] = TWO, name: str = "mine") -> Run:
    return Run(job_id, name, MetricsOut(series=series))


def lines(*runs: Run) -> list[Line]:
    return [
        Line(one, each, metric_index, run_index, one.name)
        for run_index, each in enumerate(runs or [run()])
        for metric_index, one in enumerate(each.metrics.series)
    ]


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.key)
def test_plotly_accepts_every_kind_of_chart(chart: Chart) -> None:
    drawn = figure(chart, lines(), revision="job_1")
    go.Figure(data=drawn["data"], layout=drawn["layout"])  # raises on a property that plotly does not know


def test_points_are_in_the_figure_and_colour_is_not_the_only_sign() -> None:
    first, second = figure(CHARTS[0], lines(), revision="job_1")["data"]
    assert (first["meta"], first["x"], first["y"]) == ("loss/total", [1, 2], [3.0, 2.5])
    assert first["line"]["dash"] != second["line"]["dash"]


def test_few_steps_are_counted_whole() -> None:
    def last(step: int) -> dict[str, object]:
        series = [Series(name="eval/loss", points=[(0, 1.0), (step, 0.5)])]
        axis: dict[str, object] = figure(CHARTS[0], lines(run(series=series)), revision="job_1")["layout"]["xaxis"]
        return axis

    assert (last(0).get("dtick"), last(3).get("dtick"), last(100).get("dtick")) == (1, 1, None)


def test_the_readers_zoom_lasts_as_long_as_the_job() -> None:
    layouts = [figure(CHARTS[0], lines(), revision=job)["layout"]["uirevision"] for job in ("job_1", "job_1", "job_2")]
    assert layouts[0] == layouts[1] != layouts[2]


def test_no_button_sends_data_away() -> None:
    config = figure(CHARTS[0], lines(), revision="job_1")["config"]
    assert {button for group in config["modeBarButtons"] for button in group} == {
        "zoom2d",
        "pan2d",
        "resetScale2d",
    }
    assert config["displaylogo"] is False


def test_value_is_json_with_words_and_figures() -> None:
    (chart,) = json.loads(charts_value([run()]))
    assert (chart["key"], chart["title"], chart["file"]) == ("loss", "Training losses", "job_1-loss")
    assert [trace["meta"] for trace in chart["data"]] == ["loss/total", "loss/sft"]
    assert json.loads(charts_value([run(series=())])) == []


def test_overlaid_runs_differ_in_dashes_and_download_under_their_own_names() -> None:
    (chart,) = json.loads(charts_value([run(), run("job_2", name="other")]))
    mine, other = chart["data"][0], chart["data"][2]
    assert (mine["line"]["color"], mine["line"]["dash"]) != (other["line"]["color"], other["line"]["dash"])
    assert [trace["meta"] for trace in chart["data"]][2:] == ["loss/total@job_2", "loss/sft@job_2"]
    assert [trace["showlegend"] for trace in chart["data"]] == [True, True, False, False]


def test_no_two_overlaid_lines_differ_by_colour_alone() -> None:
    chart = next(chart for chart in CHARTS if not chart.stacked)
    drawn = figure(chart, lines(run(), run("job_2")), revision="job_1")
    signs = [(trace["line"]["dash"], trace["marker"]["symbol"]) for trace in drawn["data"]]
    assert len(set(signs)) == len(signs) == 4
    assert all(trace["mode"] == "lines+markers" for trace in drawn["data"])
    assert not any("maxdisplayed" in trace["marker"] for trace in drawn["data"])  # few points are all shown
    long = [Series(name=one.name, points=[(step, 1.0) for step in range(100)]) for one in TWO]
    drawn = figure(chart, lines(run(series=long), run("job_2", long)), revision="job_1")
    assert all(trace["marker"]["maxdisplayed"] < 100 for trace in drawn["data"])
    go.Figure(data=drawn["data"], layout=drawn["layout"])


def test_overlaid_runs_of_one_metric_are_named_by_their_jobs() -> None:
    speed = [Series(name="train/tokens_per_s", points=[(1, 3.0)])]
    (chart,) = json.loads(charts_value([run(series=speed), run("job_2", speed, "other")]))
    assert [trace["name"] for trace in chart["data"]] == ["mine", "other"]
    assert len({trace["line"]["color"] for trace in chart["data"]}) == 2


def test_a_jobs_name_is_no_markup_in_a_legend() -> None:
    speed = [Series(name="train/tokens_per_s", points=[(1, 3.0)])]
    value = charts_value([run(series=speed), run("job_2", speed, "<b>bold</b>")])
    assert "<" not in value
    assert json.loads(value)[0]["data"][1]["name"] == "&lt;b&gt;bold&lt;/b&gt;"


def test_a_metric_that_only_the_other_run_has_is_shown_and_stacks_are_not_mixed() -> None:
    time = [Series(name="time/loss_s", points=[(1, 3.0)])]
    charts = json.loads(charts_value([run(), run("job_2", time)]))
    assert [chart["key"] for chart in charts] == ["loss"]
    charts = json.loads(charts_value([run(series=time), run("job_2")]))
    assert {chart["key"]: len(chart["data"]) for chart in charts} == {"loss": 2, "time": 1}


def test_error_positions_are_bars_beside_the_corrections() -> None:
    scrg = [Series(name="scrg/mismatch_rate", points=[(1, 0.3)])]
    charts = json.loads(charts_value([run(series=scrg)], error_bins=[3, 0, 2]))
    assert [chart["key"] for chart in charts] == ["scrg", "error_positions"]
    drawn = histogram([3, 0, 2], revision="job_1")
    go.Figure(data=drawn["data"], layout=drawn["layout"])
    assert (drawn["data"][0]["x"], drawn["data"][0]["y"]) == ([0, 8, 16], [3, 0, 2])


def test_memory_is_shown_in_gibibytes() -> None:
    memory = [Series(name="memory/host_bytes", points=[(1, 2.0**31)])]
    (chart,) = json.loads(charts_value([run(series=memory)]))
    assert (chart["key"], chart["data"][0]["y"]) == ("memory", [2.0])


def test_plotly_js_is_on_this_machine() -> None:
    assert plotly_script().stat().st_size > 1_000_000
