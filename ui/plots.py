"""Series to figures: what plotly.js needs to draw the charts of the Progress tab.

Knows plotly's figure dictionaries and the page's chart component. Does not know the API. Own component, because
gr.Plot builds its plot anew at every change, which loses the reader's zoom and costs half a second for a page of
charts. Figures are plain dictionaries, since plotly.js' `config` has no place in a plotly.graph_objects.Figure; tests
validate them with it. Colours read on white and on near-black; style.css recolours text and grid lines by theme.
"""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from app.core.schemas import MetricsOut, Series
from ui.charts import Chart, assign, label

COLOURS = ("#c2703d", "#0e9384", "#6d74e8", "#c9486b", "#a9821f", "#3b82c4", "#5d9a3a", "#9c62c9")
# A second sign beside the colour.
DASHES = ("solid", "dash", "dot", "dashdot")
GREY = "#857f79"
FONT = "IBM Plex Sans, ui-sans-serif, system-ui, sans-serif"
SPIKE = {"spikecolor": GREY, "spikethickness": 1, "spikedash": "dot"}
# Few points (evaluations) are shown as points, or a lone one would be invisible.
MARKERS_BELOW = 40


def plotly_script() -> Path:
    """plotly.js as the plotly package ships it; main.py lets the page load it."""
    return Path(str(importlib.resources.files("plotly"))) / "package_data" / "plotly.min.js"


def chart_grid(*, elem_id: str) -> gr.HTML:
    """The component whose value is `charts_value`: a grid of cards, redrawn in place (charts.js)."""
    return gr.HTML(
        "[]",
        elem_id=elem_id,
        apply_default_css=False,
        html_template='<div class="sh-charts"></div>',
        js_on_load=Path(__file__).with_name("charts.js").read_text(encoding="utf-8"),
        head=f'<script src="gradio_api/file={plotly_script().as_posix()}"></script>',
    )


def charts_value(metrics: MetricsOut, *, revision: str) -> str:
    """All charts as JSON. `revision` names whose curves these are: the reader's zoom lasts as long as it stays."""
    charts = [
        {"key": chart.key, "title": chart.title, "sentence": chart.sentence} | figure(chart, series, revision=revision)
        for chart, series in assign(metrics.series)
    ]
    return json.dumps(charts)


def figure(chart: Chart, series: Sequence[Series], *, revision: str) -> dict[str, Any]:
    """plotly.js' {data, layout, config} for `series` in `chart`."""
    traces = [_trace(chart, one, index) for index, one in enumerate(series)]
    return {
        "data": traces,
        "layout": _layout(chart, many=len(traces) > 1, revision=revision),
        "config": {
            "displaylogo": False,
            # Named one by one: plotly.js' own set has a button that would send the data elsewhere.
            "modeBarButtons": [["toImage"], ["zoom2d", "pan2d", "resetScale2d"]],
            "responsive": True,
            "toImageButtonOptions": {"filename": f"{revision}-{chart.key}", "scale": 2},
        },
    }


def _trace(chart: Chart, one: Series, index: int) -> dict[str, Any]:
    is_total = one.name.endswith("/total")
    colour = GREY if is_total else COLOURS[index % len(COLOURS)]
    trace: dict[str, Any] = {
        "type": "scatter",
        "name": label(one.name),
        "x": [step for step, _ in one.points],
        "y": [value for _, value in one.points],
        "mode": "lines+markers" if len(one.points) < MARKERS_BELOW and not chart.stacked else "lines",
        "marker": {"size": 5},
        "line": {"color": colour, "width": 2.4 if is_total else 1.8},
        "hovertemplate": "%{y:.4~g}",
    }
    if chart.stacked:
        trace |= {"stackgroup": "all", "line": {"color": colour, "width": 0.8}}
    else:
        trace["line"]["dash"] = DASHES[index % len(DASHES)]
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
        "hovermode": "x unified",
        "hoverlabel": {"font": {"family": FONT, "size": 12}},
        "showlegend": many,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "xanchor": "left", "yanchor": "bottom"},
        "xaxis": {**axis, "title": {"text": "step", "standoff": 4}, "nticks": 7, "rangemode": "tozero"} | SPIKE,
        "yaxis": y_axis,
        "uirevision": revision,
    }
