"""Weights move only by finite gradients, along the schedule, and go on as they would have."""

from __future__ import annotations

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from app.core.errors import NonFiniteLoss
from app.core.job_config import TrainingConfig
from worker.distill.optimization import Optimization


def make(**settings: object) -> tuple[nn.Linear, Optimization]:
    torch.manual_seed(0)
    layer = nn.Linear(2, 1)
    training = TrainingConfig.model_validate({"max_steps": 10, "warmup_fraction": 0.2, **settings})
    groups = [{"params": list(layer.parameters()), "lr": training.learning_rate}]
    return layer, Optimization(groups, training=training, steps=10, accelerator=Accelerator())


def move(layer: nn.Linear, optimization: Optimization, scale: float = 1.0) -> float:
    (layer(torch.ones(1, 2)) * scale).sum().backward()
    return optimization.step()


def test_the_norm_is_the_one_before_clipping() -> None:
    layer, optimization = make(max_grad_norm=1.0)
    assert move(layer, optimization, scale=3.0) == pytest.approx(3 * 3**0.5)
    assert all(parameter.grad is None for parameter in layer.parameters())


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_the_learning_rate_follows_the_schedule(schedule: str) -> None:
    layer, optimization = make(schedule=schedule, learning_rate=1.0)
    rates = []
    for _ in range(10):
        rates.append(optimization.learning_rate)
        move(layer, optimization)
    assert rates[:3] == [0.0, 0.5, 1.0]
    assert (optimization.learning_rate == pytest.approx(0.0)) == (schedule != "constant")


def test_a_gradient_that_is_not_finite_moves_nothing() -> None:
    layer, optimization = make()
    before = layer.weight.detach().clone()
    with pytest.raises(NonFiniteLoss, match="gradient is not finite"):
        move(layer, optimization, scale=float("inf"))
    assert torch.equal(layer.weight, before)
    assert not optimization.is_finite()
    optimization.forget()
    assert optimization.is_finite()


def test_a_loaded_one_goes_on_as_the_saved_one() -> None:
    (one, its), (other, others) = make(), make()
    for _ in range(3):
        move(one, its)
    other.load_state_dict(one.state_dict())
    others.load(its.state())
    for _ in range(3):
        assert move(one, its) == move(other, others)
        assert its.learning_rate == others.learning_rate
    assert torch.equal(one.weight, other.weight)
