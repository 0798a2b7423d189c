from __future__ import annotations

from app.core.schemas import Series
from ui.charts import CHARTS, assign, label


def series(*names: str) -> list[Series]:
    return [Series(name=name, points=[(1, 0.5)]) for name in names]


def test_every_series_is_in_exactly_one_chart_and_none_is_empty() -> None:
    names = [
        "loss/sft",
        "loss/total",
        "dac_kl/lower",
        "dac_kl/new",
        "time/scrg_s",
        "brand_new/x",
        "alone",
        "eval/kl_ts",
    ]
    charts = assign(series(*names))
    assert sorted(one.name for _, group in charts for one in group) == sorted(names)
    assert all(group for _, group in charts)
    assert len({chart.key for chart, _ in charts}) == len(charts)


def test_unknown_metrics_get_a_chart_by_their_prefix() -> None:
    charts = {chart.key: [one.name for one in group] for chart, group in assign(series("gpu/b", "gpu/a", "dac_kl/new"))}
    assert charts == {"spare:gpu": ["gpu/a", "gpu/b"], "spare:dac_kl": ["dac_kl/new"]}


def test_total_comes_first_and_named_ones_in_the_charts_order() -> None:
    charts = {chart.key: [one.name for one in group] for chart, group in assign(series("loss/a", "loss/total"))}
    assert charts["loss"] == ["loss/total", "loss/a"]
    scrg = {chart.key: group for chart, group in assign(series("scrg/error_position", "scrg/mismatch_rate"))}["scrg"]
    assert [one.name for one in scrg] == ["scrg/mismatch_rate", "scrg/error_position"]


def test_charts_explain_themselves_in_one_sentence_and_claim_no_metric_twice() -> None:
    assert all(chart.sentence.endswith(".") and chart.sentence.count(". ") == 0 for chart in CHARTS)
    taken = [name for chart in CHARTS for name in chart.takes]
    assert len(set(taken)) == len(taken)


def test_label() -> None:
    assert [label(name) for name in ("loss/dac_kl", "time/generate_s", "x/some_thing")] == [
        "DAC-KL",
        "generate",
        "some thing",
    ]
