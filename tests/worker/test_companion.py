from __future__ import annotations

import pytest

from tests.waiting import until
from worker.companion import Companion


class Counting(Companion):
    """Counts until it is told to leave, then says that it has left."""

    def __init__(self) -> None:
        super().__init__("counting")
        self.count, self.has_left = 0, False

    def _run(self) -> None:
        while not self._leaving.wait(0.001):
            self.count += 1
        self.has_left = True


def test_it_runs_beside_the_block_and_is_gone_behind_it() -> None:
    with Counting() as beside:
        until(lambda: beside.count > 2)
        assert not beside.has_left
    assert beside.has_left


def test_an_error_of_the_block_ends_it_too_and_goes_on() -> None:
    beside = Counting()
    with pytest.raises(KeyError), beside:
        raise KeyError("the block's own")
    assert beside.has_left
