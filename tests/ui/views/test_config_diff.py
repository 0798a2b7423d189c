from __future__ import annotations

from tests.ui.conftest import SeededService
from ui.client import StillhouseClient
from ui.views.config_diff import config_diff, differences


def test_only_what_differs_is_listed_and_losses_are_compared_kind_by_kind() -> None:
    first = {"a": {"x": 1, "y": "same"}, "losses": [{"kind": "sft", "weight": 1.0}, {"kind": "span", "weight": 2.0}]}
    second = {"a": {"x": 2, "y": "same"}, "losses": [{"kind": "span", "weight": 2.0}], "b": None}
    assert differences([first, second]) == [
        ("a.x", ["1", "2"]),
        ("losses.sft.kind", ["sft", "–"]),
        ("losses.sft.weight", ["1.0", "–"]),
        ("b", ["–", "null"]),
    ]


def test_one_job_alone_has_no_difference_and_equal_jobs_say_so(api: StillhouseClient, seeded: SeededService) -> None:
    job = api.job(seeded.ids.running)
    assert config_diff([job]) == ""
    assert "the same description" in config_diff([job, job])


def test_names_and_values_are_text_and_lines_are_told_apart_in_words(
    api: StillhouseClient, seeded: SeededService
) -> None:
    html = config_diff([api.job(seeded.ids.hostile), api.job(seeded.ids.running)])
    assert "<script" not in html
    assert "<img" not in html
    assert "(solid line)" in html
    assert "(dashed line)" in html
