"""AdamW with its learning-rate schedule and a checked, clipped gradient: how the weights of one phase move.

Knows parameters and steps. Does not know losses or data.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.nn.utils import get_total_norm
from transformers import get_scheduler

from app.core.errors import NonFiniteLoss
from app.core.job_config import TrainingConfig
from worker.distill.training_state import State, optimizer_state, set_optimizer_state


class Optimization:
    """Over `groups` of parameters (with their `lr`), for `steps` steps."""

    def __init__(
        self, groups: list[dict[str, Any]], *, training: TrainingConfig, steps: int, accelerator: Accelerator
    ) -> None:
        self._accelerator = accelerator
        self._max_grad_norm = training.max_grad_norm
        on_mps = accelerator.device.type == "mps"
        self._optimizer = torch.optim.AdamW(groups, weight_decay=training.weight_decay, fused=not on_mps)
        self._schedule = get_scheduler(
            "constant_with_warmup" if training.schedule == "constant" else training.schedule,
            self._optimizer,
            num_warmup_steps=int(training.warmup_fraction * steps),
            num_training_steps=steps,
        )

    @property
    def learning_rate(self) -> float:
        """Of the first group, in the step to come."""
        return self._optimizer.param_groups[0]["lr"]

    def step(self) -> float:
        """Clips, steps, forgets the gradients, and returns their norm before clipping.

        Raises NonFiniteLoss before anything moves: a gradient that is not finite never reaches the weights.
        """
        norm = float(self._accelerator.clip_grad_norm_(self._parameters(), self._max_grad_norm))
        if not math.isfinite(norm):
            raise NonFiniteLoss("the gradient is not finite; lower training.learning_rate or use precision float32")
        self._optimizer.step()
        self._schedule.step()
        self.forget()
        return norm

    def is_finite(self) -> bool:
        """Whether the gradient's norm is."""
        gradients = [parameter.grad for parameter in self._parameters() if parameter.grad is not None]
        return math.isfinite(float(get_total_norm(gradients)))

    def forget(self) -> None:
        """Drops the gradients."""
        self._optimizer.zero_grad(set_to_none=True)

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]

    def state(self) -> State:
        scaler = self._accelerator.scaler
        return {
            "optimizer": optimizer_state(self._optimizer),
            "schedule": self._schedule.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
        }

    def load(self, state: State) -> None:
        set_optimizer_state(self._optimizer, state["optimizer"])
        self._schedule.load_state_dict(state["schedule"])
        if self._accelerator.scaler is not None and state["scaler"] is not None:
            self._accelerator.scaler.load_state_dict(state["scaler"])
