"""Where the next batch comes from: the data, fresh student samples, or the replay buffer.

DistiLLM's adaptive off-policy scheme (Ko et al., 2024) and its simpler relatives. Knows random numbers and phi.
Does not know models or how samples are made.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Literal

from app.core.job_config import AdaptiveOffPolicySampling, MixedSampling, SamplingConfig
from worker.distill.training_state import State, packed, unpacked
from worker.distill.types import TokenSequence

Source = Literal["ground_truth", "fresh", "replay"]


class ReplayBuffer:
    """The latest `size` sequences: the oldest leave first, batches are drawn without replacement."""

    def __init__(self, size: int, *, seed: int) -> None:
        self._sequences: deque[TokenSequence] = deque(maxlen=size)
        self._random = random.Random(seed)
        self._size = size

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def is_full(self) -> bool:
        return len(self._sequences) == self._size

    def add(self, sequences: Sequence[TokenSequence]) -> None:
        self._sequences.extend(sequences)

    def draw(self, count: int) -> list[TokenSequence]:
        return self._random.sample(list(self._sequences), min(count, len(self._sequences)))

    def state(self) -> State:
        sequences = [[s.prompt_ids, s.response_ids, s.is_ground_truth] for s in self._sequences]
        return {"random": packed(self._random.getstate()), "sequences": sequences}

    def load(self, state: State) -> None:
        self._random.setstate(unpacked(state["random"]))
        self._sequences.clear()
        self.add(
            [
                TokenSequence(tuple(prompt), tuple(response), is_given)
                for prompt, response, is_given in state["sequences"]
            ]
        )


class BatchSchedule:
    """Decides the source of each batch, and moves phi when the dev loss rises."""

    def __init__(self, config: SamplingConfig, *, max_steps: int, seed: int) -> None:
        self._config = config
        self._max_steps = max_steps
        self._random = random.Random(seed)
        self._reference: float | None = None
        self.phi = {"ground_truth": 0.0, "on_policy": 1.0}.get(config.kind, 0.0)
        size = 0
        if isinstance(config, MixedSampling):
            self.phi = config.student_fraction
        elif isinstance(config, AdaptiveOffPolicySampling):
            self.phi = config.phi_start
            size = config.buffer_size
        self.buffer = ReplayBuffer(size, seed=seed + 1)

    def choose(self, step: int) -> Source:
        """Source of a batch of optimizer step `step` (0-based).

        One uniform draw r: fresh if r < phi (1 - step / steps), or r < phi while the buffer is not full; replay if
        r < phi otherwise; else ground truth. Schemes without a buffer know fresh and ground truth only.
        """
        r = self._random.random()
        if r >= self.phi:
            return "ground_truth"
        if not isinstance(self._config, AdaptiveOffPolicySampling):
            return "fresh"
        fresh = not self.buffer.is_full or r < self.phi * (1 - step / self._max_steps)
        return "fresh" if fresh else "replay"

    def store(self, sequences: Sequence[TokenSequence]) -> None:
        """Puts fresh samples into the buffer (schemes without one forget them)."""
        self.buffer.add(sequences)

    def observe_dev_loss(self, loss: float) -> None:
        """After a dev pass: a loss that rose by the margin over the reference raises phi and is the new reference."""
        if not isinstance(self._config, AdaptiveOffPolicySampling):
            return
        if self._reference is None:
            self._reference = loss
        elif loss >= self._reference + self._config.dev_loss_margin:
            self.phi = min(1.0, self.phi + self._config.phi_step)
            self._reference = loss

    def state(self) -> State:
        return {
            "random": packed(self._random.getstate()),
            "phi": self.phi,
            "reference": self._reference,
            "buffer": self.buffer.state(),
        }

    def load(self, state: State) -> None:
        self._random.setstate(unpacked(state["random"]))
        self.phi, self._reference = state["phi"], state["reference"]
        self.buffer.load(state["buffer"])
