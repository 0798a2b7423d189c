"""What a step did, seen from outside: the passes through each model's body, and the widest logits that were alive.

Knows where bodies are called and what operations return. Does not know which counts are right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from worker.distill.assembly import Assembly
from worker.distill.lean import LeanBody
from worker.distill.models import SplitModel


class Widest(TorchDispatchMode):
    """Remembers how many rows of V numbers the largest result of any operation had, backward passes included.

    A result counts if V is its last size; the head's gradient, turned over to [D, V], does not.
    """

    def __init__(self, vocabulary: int, *, width: int) -> None:
        super().__init__()
        self.rows = 0
        self._vocabulary, self._weight = vocabulary, vocabulary * width

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor) and self._has_logits(tensor):
                self.rows = max(self.rows, tensor.numel() // self._vocabulary)
        return result

    def _has_logits(self, tensor: torch.Tensor) -> bool:
        return tensor.shape[-1:] == (self._vocabulary,) and tensor.numel() != self._weight


@contextmanager
def passes(run: Assembly, patch: Any) -> Iterator[Counter[str]]:
    """Counts, while it is open, passes ("<who> passes") and the tokens in them ("<who> tokens").

    Who: `writer` (the student that samples) and `reader` (the teacher that reads along), by their lean bodies;
    `student` and `teacher` by their own forward passes over whole batches. Both read whole batches by their lean bodies
    too: tokens of those passes are real ones, without padding.
    """
    found: Counter[str] = Counter()
    lean = {id(run.sampler.lm.lean): "writer", id(run.teacher.lean): "reader"}
    whole = {id(run.student): "student", id(run.teacher): "teacher"}
    through_lean, through_model = LeanBody.__call__, SplitModel.hidden

    def counted_lean(self: LeanBody, tokens_N: torch.Tensor, *rest: Any, **wanted: Any) -> torch.Tensor:
        found[f"{lean[id(self)]} passes"] += 1
        found[f"{lean[id(self)]} tokens"] += tokens_N.numel()
        return through_lean(self, tokens_N, *rest, **wanted)

    def counted_model(self: SplitModel, input_ids_BT: torch.Tensor, **rest: Any) -> torch.Tensor:
        found[f"{whole[id(self)]} passes"] += 1
        found[f"{whole[id(self)]} tokens"] += input_ids_BT.numel()
        return through_model(self, input_ids_BT, **rest)

    with patch.context() as now:
        now.setattr(LeanBody, "__call__", counted_lean)
        now.setattr(SplitModel, "hidden", counted_model)
        yield found
