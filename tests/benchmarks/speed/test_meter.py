"""An engine in a process of its own: it runs a step when it is told to, and the arms are asked in turn."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.speed.meter import Arm, Meter
from benchmarks.speed.rows import interleaved, peak

MIB = 2**18  # float32 numbers


def counting(spec: Any, meter: Meter) -> None:
    """Trains on as many tokens as it has done steps; every `spec`-th step allocates a MiB, the others nothing."""
    done = 0
    while meter.boundary(done, seen=done):
        if done % spec == 0:
            torch.ones(MIB)
        done += 1


def test_a_cycle_stands_for_a_step() -> None:
    """The first cycle of each arm warms up."""
    with Arm(counting, 1) as single, Arm(counting, 3) as cyclic:
        found = interleaved({"single": single, "cyclic": cyclic}, repeat=2, cycles={"cyclic": 3})
    assert [cost.tokens for cost in found["single"]] == [2, 3]
    assert [cost.tokens for cost in found["cyclic"]] == [5, 8]  # means of 4, 5, 6 and of 7, 8, 9
    assert found["cyclic"][-1].notes == {"seen": 9}
    assert all(cost.seconds >= 0 for costs in found.values() for cost in costs)


def test_the_peak_is_that_of_the_step_behind_the_warm_up() -> None:
    assert peak(counting, 3, after=3) >= 1
    assert peak(counting, 3, after=1) < 0.1
