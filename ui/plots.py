"""Series to figures: what plotly.js needs to draw the charts of the Progress tab.

Knows plotly's figure dictionaries and the page's chart component. Does not know the API. Own component, because
gr.Plot builds its plot anew at every change, which loses the reader's zoom and costs half a second for a page of
charts. Figures are plain dictionaries, since plotly.js' `config` has no place in a plotly.graph_objects.Figure; tests
validate them with it. Colours read on white and on near-black; style.css recolours text and grid lines by theme.
"""

from __future__ import annotations

import html
import importlib.resources
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from app.core.schemas import MetricsOut, Series
from ui.charts import ERROR_POSITIONS, Chart, assign, label
from ui.event_view import ERROR_BIN

COLOURS = ("#c2703d", "#0e9384", "#6d74e8", "#c9486b", "#a9821f", "#3b82c4", "#5d9a3a", "#9c62c9")
# A second sign beside the colour.
DASHES = ("solid", "dash", "dot", "dashdot")
# A third, where dashes tell runs apart and a chart has several metrics too; a few along each line.
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "hexagon")
SYMBOLS_PER_LINE = 8
GREY = "#857f79"
FONT = "IBM Plex Sans, ui-sans-serif, system-ui, sans-serif"
SPIKE = {"spikecolor": GREY, "spikethickness": 1, "spikedash": "dot"}
CONFIG = {
    "displaylogo": False,
    # Named one by one: plotly.js' own set has a button that would send the data elsewhere.
    "modeBarButtons": [["zoom2d", "pan2d", "resetScale2d"]],
    "responsive": True,
}
# Few points (evaluations) are shown as points, or a lone one would be invisible.
MARKERS_BELOW = 40
FEW_STEPS = 7


def plotly_script() -> Path:
    """plotly.js as the plotly package ships it; main.py lets the page load it."""
    return Path(str(importlib.resources.files("plotly"))) / "package_data" / "plotly.min.js"


def preload_html() -> str:
    """For the page's head: an address that opens the charts asks for plotly.js while the page is still being built, and
    not only when the charts are."""
    link = f"Object.assign(document.createElement('link'), {{rel: 'preload', as: 'script', href: '{_script_url()}'}})"
    is_asked = "new URLSearchParams(location.search).get('tab') === 'progress'"
    return f"<script>if ({is_asked}) document.head.append({link})</script>"


def _script_url() -> str:
    return f"gradio_api/file={plotly_script().as_posix()}"


def chart_grid(*, elem_id: str) -> gr.HTML:
    """The component whose value is `charts_value`: a grid of cards, redrawn in place (charts.js)."""
    return gr.HTML(
        "[]",
        elem_id=elem_id,
        apply_default_css=False,
        html_template='<div class="sh-charts"></div>',
        js_on_load=Path(__file__).with_name("charts.js").read_text(encoding="utf-8"),
        head=f'<script src="{_script_url()}"></script>',
    )


@dataclass(frozen=True)
class Run:
    """One job's curves. The first of several is the page's own, the others are laid over it."""

    job_id: str
    name: str
    metrics: MetricsOut


@dataclass(frozen=True)
class Line:
    """One curve of a chart: the metric's place among the chart's, and the run's among the runs."""

    series: Series
    run: Run
    metric_index: int
    run_index: int
    name: str


def charts_value(runs: Sequence[Run], *, error_bins: Sequence[int] = ()) -> str:
    """All charts as JSON, for the first run's job. The reader's zoom lasts as long as that job stays the same."""
    by_name = {one.name: one for run in reversed(runs) for one in run.metrics.series}
    revision = runs[0].job_id
    charts = []
    for chart, series in assign(list(by_name.values())):
        lines = _lines(chart, [one.name for one in series], runs)
        if lines:
            charts.append(_words(chart) | figure(chart, lines, revision=revision))
        if chart.key == "scrg" and any(error_bins):
            charts.append(_words(ERROR_POSITIONS) | histogram(error_bins, revision=revision))
    # Names of jobs are in it: no tag of theirs may look like one to whatever carries the value.
    return json.dumps(charts).replace("<", "\\u003c")


def _words(chart: Chart) -> dict[str, Any]:
    return {"key": chart.key, "title": chart.title, "sentence": chart.sentence}


def _lines(chart: Chart, names: Sequence[str], runs: Sequence[Run]) -> list[Line]:
    """Only the page's own run in a stacked chart: stacks of two runs would add up to nothing."""
    lines = []
    for run_index, run in enumerate(runs[:1] if chart.stacked else runs):
        own = {one.name: one for one in run.metrics.series}
        for metric_index, name in enumerate(names):
            if name in own:
                lines.append(
                    Line(own[name], run, metric_index, run_index, _line_name(name, names, run, run_index, runs))
                )
    return lines


def _line_name(name: str, names: Sequence[str], run: Run, run_index: int, runs: Sequence[Run]) -> str:
    """The metric, the job, or both, as far as there are several of either."""
    job = html.escape(run.name[:40], quote=False)  # plotly.js takes some tags for markup, and turns entities back
    if len(names) == 1 and len(runs) > 1:
        return job
    return label(name) if run_index == 0 else f"{label(name)} · {job}"


def figure(chart: Chart, lines: Sequence[Line], *, revision: str) -> dict[str, Any]:
    """plotly.js' {data, layout, config} for `lines` in `chart`."""
    many_metrics = len({line.metric_index for line in lines}) > 1
    many_runs = len({line.run_index for line in lines}) > 1
    traces = [_trace(chart, line, many_metrics=many_metrics, many_runs=many_runs) for line in lines]
    layout = _layout(chart, many=len(traces) > 1, revision=revision)
    if max((x for trace in traces for x in trace["x"]), default=0) <= FEW_STEPS:
        layout["xaxis"]["dtick"] = 1  # there is no step 0.5
    return {
        "data": traces,
        "layout": layout,
        "config": CONFIG,
        "file": f"{revision}-{chart.key}",
    }


def histogram(error_bins: Sequence[int], *, revision: str) -> dict[str, Any]:
    """How many corrections there were at which token of a response; the last bin is open."""
    layout = _layout(ERROR_POSITIONS, many=False, revision=revision)
    layout["xaxis"] = {**layout["xaxis"], "title": {"text": "token of the response", "standoff": 4}}
    bars = {
        "type": "bar",
        "name": "corrections",
        "meta": "corrections",
        "x": [i * ERROR_BIN for i in range(len(error_bins))],
        "y": list(error_bins),
        "width": ERROR_BIN,
        "offset": 0,
        "marker": {"color": COLOURS[0]},
        "hovertemplate": "%{y}",
    }
    return {
        "data": [bars],
        "layout": layout | {"bargap": 0.08},
        "config": CONFIG,
        "file": f"{revision}-{ERROR_POSITIONS.key}",
    }


def _trace(chart: Chart, line: Line, *, many_metrics: bool, many_runs: bool) -> dict[str, Any]:
    """Metrics differ in colour, runs in dashes; where there is only one of either, both signs tell the other apart, and
    where there are several of both, metrics have symbols too."""
    points = line.series.points
    is_total = line.series.name.endswith("/total")
    colour_index = line.metric_index if many_metrics else line.run_index
    colour = GREY if is_total else COLOURS[colour_index % len(COLOURS)]
    trace: dict[str, Any] = {
        "type": "scatter",
        "name": line.name,
        # What the column of a download is called.
        "meta": f"{line.series.name}@{line.run.job_id}" if many_runs else line.series.name,
        # One entry per metric: what the dashes of the runs mean stands above the charts, once for all.
        "showlegend": not (many_metrics and line.run_index),
        "x": [step for step, _ in points],
        "y": [value / chart.divide_by for _, value in points],
        "mode": "lines+markers" if len(points) < MARKERS_BELOW and not chart.stacked else "lines",
        "marker": {"size": 5},
        "cliponaxis": False,  # a point of step 0 stands on the axis
        "line": {"color": colour, "width": 2.4 if is_total else 1.8},
        "hovertemplate": "%{y:.4~g}",
    }
    if chart.stacked:
        trace |= {"stackgroup": "all", "line": {"color": colour, "width": 0.8}}
    else:
        trace["line"]["dash"] = DASHES[(line.run_index if many_runs else line.metric_index) % len(DASHES)]
        if many_metrics and many_runs:
            symbol = SYMBOLS[line.metric_index % len(SYMBOLS)]
            trace |= {"mode": "lines+markers", "marker": {"symbol": symbol, "size": 6}}
            if len(points) >= MARKERS_BELOW:
                trace["marker"]["maxdisplayed"] = SYMBOLS_PER_LINE
    return trace


def _layout(chart: Chart, *, many: bool, revision: str) -> dict[str, Any]:
    axis: dict[str, Any] = {"gridcolor": "rgba(133,127,121,0.22)", "zeroline": False, "automargin": True}
    axis |= {"ticks": "outside", "ticklen": 5, "tickcolor": "rgba(0,0,0,0)"}
    y_axis: dict[str, Any] = {**axis, "nticks": 5, "exponentformat": "e"}
    if chart.unit_range:
        y_axis["range"] = [-0.02, 1.02]
    elif chart.from_zero:
        y_axis["rangemode"] = "tozero"
    return {
        "template": {},
        "height": 216,
        "margin": {"l": 44, "r": 10, "t": 30 if many else 10, "b": 40},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 12, "color": GREY},
        # plotly.js' own is a grey box on a transparent chart.
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": GREY, "activecolor": COLOURS[0]},
        "hovermode": "x unified",
        "hoverlabel": {"font": {"family": FONT, "size": 12}},
        "showlegend": many,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "xanchor": "left", "yanchor": "bottom"},
        "xaxis": {**axis, "title": {"text": "step", "standoff": 4}, "nticks": 7, "rangemode": "tozero"} | SPIKE,
        "yaxis": y_axis,
        "uirevision": revision,
    }
