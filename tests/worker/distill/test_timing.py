"""Sections add up and `take` starts anew."""

from __future__ import annotations

import time

import pytest

from worker.distill.timing import Clock


def test_sections_add_up_even_when_they_fail() -> None:
    clock = Clock()
    for _ in range(2):
        with clock("a"):
            time.sleep(0.01)
    with pytest.raises(ValueError, match="x"), clock("b"):
        raise ValueError("x")
    seconds = clock.take()
    assert seconds["a"] >= 0.02
    assert set(seconds) == {"a", "b"}
    assert clock.take() == {}


def test_the_rest_is_what_no_section_has() -> None:
    clock = Clock()
    with clock("a"):
        time.sleep(0.01)
    start = time.perf_counter()
    with clock.rest("idle"):
        with clock("b"):
            time.sleep(0.05)
        time.sleep(0.02)
    whole = time.perf_counter() - start
    seconds = clock.take()
    assert set(seconds) == {"a", "b", "idle"}
    assert seconds["idle"] >= 0.02
    assert seconds["b"] + seconds["idle"] <= whole
