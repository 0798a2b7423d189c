"""The closed world: seeded tasks, in splits that share no content.

Knows which split a task's content belongs to. Does not know tokens, models or regimes.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from typing import Literal, get_args

from benchmarks.quality.families import FAMILIES, Task, draw_task

Split = Literal["train", "start", "dev", "test"]
# The first hundredth that a split holds: train 0 to 69, start 70 to 79, and so on.
_BEGINS: dict[Split, int] = {"train": 0, "start": 70, "dev": 80, "test": 90}
_PATIENCE = 10_000  # draws without a new prompt after which a family counts as exhausted
SPLITS: tuple[Split, ...] = get_args(Split)


def split_of(task: Task) -> Split:
    """The split is a hash of family and content, so one question in two wordings is never in two splits."""
    digest = hashlib.sha256(json.dumps([task.family, *task.content]).encode()).digest()
    hundredth = int.from_bytes(digest[:4]) % 100
    return max((split for split in SPLITS if _BEGINS[split] <= hundredth), key=_BEGINS.__getitem__)


def draw_tasks(split: Split, count: int, *, seed: int, families: Sequence[str] = tuple(FAMILIES)) -> list[Task]:
    """`count` tasks with different prompts, `families` in turn: the same ones for the same arguments.

    Raises ValueError when a family does not have as many different prompts in this split.
    """
    chance = random.Random(f"{split} {seed}")
    tasks: dict[str, Task] = {}
    misses = 0
    while len(tasks) < count:
        family = families[len(tasks) % len(families)]
        task = draw_task(family, chance)
        if split_of(task) == split and task.prompt not in tasks:
            tasks[task.prompt] = task
            misses = 0
        elif (misses := misses + 1) > _PATIENCE:
            raise ValueError(f"the family {family} has no {count // len(families)} different prompts in {split}")
    return list(tasks.values())
