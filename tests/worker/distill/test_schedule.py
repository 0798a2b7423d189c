"""The adaptive off-policy scheme, draw by draw, and the replay buffer."""

from __future__ import annotations

import random
from collections import Counter

from app.core.job_config import (
    AdaptiveOffPolicySampling,
    GroundTruthSampling,
    MixedSampling,
    OnPolicySampling,
    SamplingConfig,
)
from worker.distill.schedule import BatchSchedule, ReplayBuffer
from worker.distill.types import TokenSequence


def sequence(i: int) -> TokenSequence:
    return TokenSequence((1,), (i,), is_ground_truth=False)


def shares(config: SamplingConfig, draws: int = 4000) -> dict[str, float]:
    schedule = BatchSchedule(config, max_steps=draws, seed=1)
    return {k: v / draws for k, v in Counter(schedule.choose(0) for _ in range(draws)).items()}


def test_simple_schemes() -> None:
    assert shares(GroundTruthSampling()) == {"ground_truth": 1.0}
    assert shares(OnPolicySampling()) == {"fresh": 1.0}
    assert abs(shares(MixedSampling(student_fraction=0.3))["fresh"] - 0.3) < 0.03


def test_adaptive_draws_follow_the_rule() -> None:
    config = AdaptiveOffPolicySampling(phi_start=0.6, buffer_size=4)
    schedule = BatchSchedule(config, max_steps=100, seed=3)
    twin = random.Random(3)
    seen = set()
    for step in range(100):
        if step == 30:
            schedule.store([sequence(i) for i in range(4)])
        r = twin.random()
        full = step >= 30
        if r < 0.6 * (1 - step / 100) or (r < 0.6 and not full):
            expected = "fresh"
        elif r < 0.6:
            expected = "replay"
        else:
            expected = "ground_truth"
        assert schedule.choose(step) == expected
        seen.add(expected)
    assert seen == {"fresh", "replay", "ground_truth"}


def test_phi_rises_with_the_dev_loss_and_stops_at_one() -> None:
    config = AdaptiveOffPolicySampling(phi_start=0.0, phi_step=0.4, dev_loss_margin=0.1)
    schedule = BatchSchedule(config, max_steps=10, seed=0)
    history = []
    for loss in (2.0, 1.5, 2.09, 2.1, 2.15, 2.2, 2.31):
        schedule.observe_dev_loss(loss)
        history.append(round(schedule.phi, 3))
    # reference 2.0 until 2.1 reaches it + 0.1; then 2.1 until 2.2; then 2.2 until 2.31
    assert history == [0, 0, 0, 0.4, 0.4, 0.8, 1.0]
    mixed = BatchSchedule(MixedSampling(student_fraction=0.5), max_steps=10, seed=0)
    for loss in (1.0, 9.0):
        mixed.observe_dev_loss(loss)
    assert mixed.phi == 0.5


def test_the_buffer_is_first_in_first_out_and_draws_without_replacement() -> None:
    buffer = ReplayBuffer(3, seed=0)
    buffer.add([sequence(0), sequence(1)])
    assert not buffer.is_full
    assert len(buffer.draw(5)) == 2
    buffer.add([sequence(2), sequence(3)])
    assert buffer.is_full
    assert {s.response_ids[0] for s in buffer.draw(3)} == {1, 2, 3}
