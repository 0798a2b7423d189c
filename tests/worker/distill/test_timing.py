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
