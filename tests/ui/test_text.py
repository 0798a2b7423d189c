from __future__ import annotations

import html
from datetime import UTC, datetime, timedelta

import pytest

from ui.text import age, count, duration, esc, model_name, number, size, student_name

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_esc_leaves_nothing_that_runs() -> None:
    assert esc("<script>&\"'") == "&lt;script&gt;&amp;&quot;&#x27;"
    assert esc("half a pair \ud83e") == "half a pair ?"


def test_every_line_end_stays_what_it_is() -> None:
    assert html.unescape(esc("one\r\ntwo\rthree\n")) == "one\r\ntwo\rthree\n"
    assert "\r" not in esc("one\r\ntwo")  # a browser would read it as a line feed


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234.5, "1,234"), (99.94, "99.9"), (1.234, "1.23"), (0.03141, "0.0314"), (5e-5, "5e-05"), (0, "0"), (None, "–")],
)
def test_number(value: float | None, text: str) -> None:
    assert number(value) == text
    assert number(float("nan")) == "nan"


@pytest.mark.parametrize(("value", "text"), [(999, "999"), (1000, "1K"), (134_515_008, "134.5M"), (None, "–")])
def test_count(value: int | None, text: str) -> None:
    assert count(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(512, "512 B"), (2048, "2 KiB"), (3 * 2**30, "3.0 GiB"), (2**42, "4.0 TiB")]
)
def test_size(value: int, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.4, "59 s"), (60, "1 min"), (3599, "59 min 59 s"), (3660, "1 h 1 min"), (90_000, "1 d 1 h")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text
    assert duration(None) == duration(float("inf")) == "–"


def test_age_takes_times_with_and_without_zone() -> None:
    assert age(NOW - timedelta(minutes=5), NOW) == "5 min ago"
    assert age(NOW.replace(tzinfo=None) - timedelta(hours=30), NOW) == "1 d ago"
    assert age(NOW + timedelta(seconds=3), NOW) == "0 s ago"


def test_names_of_models() -> None:
    assert model_name("org/model") == "model"
    assert model_name("/models/tiny/") == "tiny"
    assert model_name("C:\\models\\a.gguf") == "a.gguf"
    assert student_name({"kind": "from_teacher", "layers": 10}) == "10 layers"
    assert student_name({"kind": "checkpoint", "model": "org/small"}) == "small"
