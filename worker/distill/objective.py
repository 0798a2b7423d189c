"""The weighted sum of a job's losses, and its backward pass from hidden states in slices of positions.

Knows counts, weights and slices. Does not know which losses exist, nor models beyond a head that maps hidden states
to logits. No tensor here is wider than [slice, V] (or [N, V] when slicing is off).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack, cast

import torch
from torch import Tensor, nn

from app.core.errors import NonFiniteLoss, NothingToLearn
from app.core.events import Warned
from app.core.loss_config import LossConfig
from worker.distill.losses.base import Loss, LossInputs
from worker.distill.losses.table import build_loss
from worker.distill.types import Batch

Head = Callable[[Tensor], Tensor]
# log 0 is the lowest finite float (see `losses.base`), so an infinite divergence is a number as far out as this.
INFINITE = 1e30


class FromHidden(TypedDict):
    """Keyword arguments of `backward_from_hidden` and `evaluate_from_hidden`.

    A head maps hidden states [n, D] to logits of any width from `vocabulary_size`; what lies behind is cut off. The
    teacher may be None when no loss needs it. `counts` comes from `Objective.counts` over the accumulation window.
    `chunk_positions` is the length of a slice, None for all positions at once.
    """

    student_hidden_ND: Tensor
    student_head: Head
    teacher_hidden_ND: Tensor | None
    teacher_head: Head | None
    batch: Batch
    counts: Mapping[str, int]
    vocabulary_size: int
    chunk_positions: int | None


@dataclass(frozen=True)
class _Slice:
    """Positions `start` up to `stop` of N, read up to `end` (one further where a pair crosses), and their pairs."""

    start: int
    stop: int
    end: int
    first_pair: int
    last_pair: int


class Objective(nn.Module):
    """`sum of weight * loss` over a job's losses; its parameters (f_sub's, say) join the optimizer and checkpoints."""

    def __init__(self, configs: Sequence[LossConfig]) -> None:
        super().__init__()
        self.losses = nn.ModuleDict({config.kind: build_loss(config) for config in configs})
        self._weights: dict[str, float] = {config.kind: config.weight for config in configs}

    @property
    def needs_teacher(self) -> bool:
        return any(loss.needs_teacher for _, loss in self._terms())

    def parameter_groups(self, learning_rate: float) -> list[dict[str, object]]:
        """Optimizer groups of the losses' own parameters, each with its own learning rate."""
        groups = [
            {"params": list(loss.parameters()), "lr": learning_rate * loss.lr_factor} for _, loss in self._terms()
        ]
        return [group for group in groups if group["params"]]

    def counts(self, batches: Sequence[Batch]) -> dict[str, int]:
        """What each term is divided by: what it counts in all micro-batches of one accumulation window.

        Raises NothingToLearn when no term counts anything, instead of training on a loss of 0.
        """
        counts = {kind: sum(loss.count(batch) for batch in batches) for kind, loss in self._terms()}
        if not any(counts.values()):
            raise NothingToLearn(
                "no response token in this batch carries loss; give the rows responses, or add a loss that counts "
                "sampled rows too (sft counts ground-truth rows only)",
                "losses",
            )
        return counts

    def chunk_loss(self, inputs: LossInputs, counts: Mapping[str, int]) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted loss of one slice, and its share of every metric; shares add up to the window's means.

        Terms that count nothing in the window are left out, of the metrics too: a mean over nothing is no number.
        """
        weighted = torch.zeros((), device=inputs.student_logits_MV.device)
        shares: dict[str, Tensor] = {}
        # Heads may run in bfloat16 under the caller's autocast; losses do not.
        with torch.autocast(inputs.student_logits_MV.device.type, enabled=False):
            for kind, loss in self._terms():
                if not counts[kind]:
                    continue
                output = loss(inputs)
                mean = output.total / counts[kind]
                weighted = weighted + self._weights[kind] * mean
                shares[f"loss/{kind}"] = mean.detach()
                shares |= {f"{kind}/{name}": value / counts[kind] for name, value in output.stats.items()}
        shares["loss/total"] = weighted.detach()
        return weighted, shares

    def backward_from_hidden(self, **source: Unpack[FromHidden]) -> dict[str, float]:
        """Adds the micro-batch's gradient to the student's and the losses' parameters; returns its share of metrics.

        The loss and its gradient with respect to the hidden states are computed slice by slice, then the student's
        body is back-propagated once. Metrics are `loss/total`, `loss/<kind>` and `<kind>/<stat>`; added up over the
        window's micro-batches they are means. Raises NonFiniteLoss, naming the term, before any optimizer step.
        """
        student_ND = source["student_hidden_ND"]
        leaf_ND = student_ND.detach().requires_grad_()
        metrics: dict[str, Tensor] = {}
        for piece in _slices(source["batch"], source["chunk_positions"]):
            weighted, shares = self.chunk_loss(self._inputs(leaf_ND, piece, source), source["counts"])
            weighted.backward()
            _add(metrics, shares)
        if leaf_ND.grad is not None and student_ND.requires_grad:
            student_ND.backward(leaf_ND.grad)
        return _finite(metrics)

    @torch.no_grad()
    def evaluate_from_hidden(self, **source: Unpack[FromHidden]) -> dict[str, float]:
        """The same share of metrics as `backward_from_hidden`, without gradients (held-out rows)."""
        metrics: dict[str, Tensor] = {}
        for piece in _slices(source["batch"], source["chunk_positions"]):
            inputs = self._inputs(source["student_hidden_ND"], piece, source)
            _add(metrics, self.chunk_loss(inputs, source["counts"])[1])
        return _finite(metrics)

    def warnings(self, metrics: Mapping[str, float], *, step: int) -> list[Warned]:
        """What a user should know about a step's metrics; one event per loss that raises an alarm."""
        found = []
        for kind, loss in self._terms():
            means = {name.removeprefix(f"{kind}/"): x for name, x in metrics.items() if name.startswith(f"{kind}/")}
            message = loss.alarm(means) if means else None
            if message:
                found.append(Warned(code=f"{kind}_alarm", message=message, step=step))
        return found

    def _inputs(self, student_ND: Tensor, piece: _Slice, source: FromHidden) -> LossInputs:
        batch, width = source["batch"], source["vocabulary_size"]
        positions, pairs = slice(piece.start, piece.end), slice(piece.first_pair, piece.last_pair)
        teacher_logits_MV = None
        if any(loss.needs_teacher and source["counts"][kind] for kind, loss in self._terms()):
            teacher_ND, teacher_head = source["teacher_hidden_ND"], source["teacher_head"]
            assert teacher_ND is not None, "a loss needs the teacher"
            assert teacher_head is not None, "a loss needs the teacher"
            with torch.no_grad():
                teacher_logits_MV = teacher_head(teacher_ND[positions])[:, :width]
        return LossInputs(
            student_logits_MV=source["student_head"](student_ND[positions])[:, :width],
            teacher_logits_MV=teacher_logits_MV,
            labels_M=batch.labels_N[positions],
            is_ground_truth_M=batch.is_ground_truth_N[positions],
            num_positions=piece.stop - piece.start,
            pair_index_P2=batch.pair_index_P2[pairs] - piece.start,
            pair_span_size_P=batch.pair_span_size_P[pairs],
        )

    def _terms(self) -> Iterator[tuple[str, Loss]]:
        return ((kind, cast(Loss, loss)) for kind, loss in self.losses.items())


def _slices(batch: Batch, chunk_positions: int | None) -> Iterator[_Slice]:
    """Slices that cover N; a span pair belongs to the slice of its first position, so it is counted once."""
    first_of_pairs = batch.pair_index_P2[:, 0].tolist()
    size = chunk_positions or max(batch.num_positions, 1)
    for start in range(0, batch.num_positions, size):
        stop = min(start + size, batch.num_positions)
        first_pair, last_pair = bisect_left(first_of_pairs, start), bisect_left(first_of_pairs, stop)
        crosses = last_pair > first_pair and first_of_pairs[last_pair - 1] == stop - 1
        yield _Slice(start, stop, stop + crosses, first_pair, last_pair)


def _add(metrics: dict[str, Tensor], shares: Mapping[str, Tensor]) -> None:
    for name, share in shares.items():
        metrics[name] = metrics[name] + share if name in metrics else share


def _finite(metrics: Mapping[str, Tensor]) -> dict[str, float]:
    """Plain numbers, brought over from the device in one transfer."""
    if not metrics:
        return {}
    numbers = dict(zip(metrics, torch.stack(list(metrics.values())).tolist(), strict=True))
    for name, number in numbers.items():
        if not abs(number) < INFINITE:
            raise NonFiniteLoss(
                f"the term {name} became {number}; lower training.learning_rate, or use training.precision float32",
                "losses",
            )
    return numbers
