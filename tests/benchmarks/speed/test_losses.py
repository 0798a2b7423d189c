"""The contender that needs no other library, at toy size: its steps are measured, and its address space is limited."""

from __future__ import annotations

import pytest

from benchmarks.speed.losses import JsdSpec, run_jsd
from benchmarks.speed.meter import Arm


@pytest.mark.slow
def test_a_contender_is_measured_and_fails_alone_when_it_needs_more_than_it_may_take() -> None:
    with Arm(run_jsd, JsdSpec("ours", positions=16, vocabulary=3_000, width=8, limit_bytes=2**40)) as arm:
        cost = arm.step("memory")
        assert cost.tokens == 16
        assert cost.peak_mib is not None
        assert 0.1 < cost.peak_mib < 20
    with pytest.raises(EOFError):  # 96 GiB for the heads' weights
        Arm(run_jsd, JsdSpec("ours", positions=16, vocabulary=3 * 10**9, width=8, limit_bytes=2**34))
