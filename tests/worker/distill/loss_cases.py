"""What the tests of losses share: a slice of random positions, a toy language model, and every entry of the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from app.core.loss_config import DacKlLoss, JsdLoss, SftLoss, SpanLoss, TopKKlLoss, TopPKlLoss
from worker.distill.losses.base import LossInputs
from worker.distill.losses.table import LOSSES
from worker.distill.objective import Objective
from worker.distill.types import SpanPairs, TokenSequence, make_batch

V = 13
PAD, EOS = 0, 2

# The default of every entry of the table, and the switches that change what is computed.
_DAC = {"top_k": 6, "hidden_size": 8, "kappa": 20.0}
VARIANTS = [
    SftLoss(rows="all"),
    JsdLoss(beta=0.9),
    TopKKlLoss(top_k=1),
    TopKKlLoss(top_k=4),
    TopPKlLoss(top_p=0.5),
    TopPKlLoss(top_p=1.0, max_classes=4),
    *[SpanLoss(distance=d, average=a) for d in ("l2_squared", "l2") for a in ("pairs", "spans")],
    *[
        DacKlLoss(normalise=n, subnet_objective=o, **_DAC)
        for n in ("none", "renorm", "rest_bucket")
        for o in ("density", "minimise", "fixed")
    ],
    DacKlLoss(quantiles="all", density_gain="absolute", **_DAC),
]
CASES: list[Any] = [config() for config in LOSSES] + VARIANTS
DIVERGENCES = [case for case in CASES if not isinstance(case, SftLoss)]


def name(config: Any) -> str:
    changed = config.model_dump(exclude_defaults=True, exclude={"kind", "hidden_size", "kappa"})
    if isinstance(config, DacKlLoss):
        changed.pop("top_k", None)
    return "-".join([config.kind, *map(str, changed.values())])


def make_inputs(
    student_MV: Tensor,
    teacher_MV: Tensor,
    *,
    labels: Sequence[int] | None = None,
    ground_truth: Sequence[bool] | None = None,
    pairs: Sequence[tuple[int, int]] = (),
    span_sizes: Sequence[int] = (),
) -> LossInputs:
    m = len(student_MV)
    return LossInputs(
        student_logits_MV=student_MV,
        teacher_logits_MV=teacher_MV,
        labels_M=torch.tensor(labels if labels is not None else [0] * m, dtype=torch.long),
        is_ground_truth_M=torch.tensor(ground_truth if ground_truth is not None else [True] * m, dtype=torch.bool),
        num_positions=m,
        pair_index_P2=torch.tensor(pairs, dtype=torch.long).reshape(-1, 2),
        pair_span_size_P=torch.tensor(span_sizes or [1] * len(pairs), dtype=torch.long),
    )


def random_inputs(seed: int, m: int = 6, v: int = V, dtype: torch.dtype = torch.float32) -> LossInputs:
    random = torch.Generator().manual_seed(seed)
    student, teacher = (2 * torch.randn(m, v, generator=random, dtype=torch.float64) for _ in range(2))
    return make_inputs(
        student.to(dtype).requires_grad_(),
        teacher.to(dtype),
        labels=torch.randint(v, (m,), generator=random).tolist(),
        ground_truth=[i % 3 != 1 for i in range(m)],
        pairs=[(i, i + 1) for i in range(m - 1) if i != 2],
        span_sizes=[2, 2, *[m - 4] * (m - 4)] if m > 4 else [1] * max(m - 2, 0),
    )


class Toy(nn.Module):
    """A causal language model of one line: the hidden state of a position is a mean over the ids up to it."""

    def __init__(self, seed: int, *, width: int = 5, vocabulary_size: int = V) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        self.body = nn.Parameter(torch.randn(V, width, generator=random))
        self.head = nn.Linear(width, vocabulary_size, bias=False)
        with torch.no_grad():
            self.head.weight.copy_(2 * torch.randn(vocabulary_size, width, generator=random))

    def hidden(self, ids_BT: Tensor) -> Tensor:
        states_BTD = self.body[ids_BT].cumsum(1)
        return states_BTD / torch.arange(1, ids_BT.shape[1] + 1, device=ids_BT.device)[:, None].sqrt()


def make_sequences(seed: int = 0, rows: int = 4) -> list[TokenSequence]:
    """Rows of unequal length that end with EOS; every other one is ground truth."""
    random = torch.Generator().manual_seed(seed)

    def ids(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(3, V, (length,), generator=random).tolist())

    return [TokenSequence(ids(2 + i), (*ids(3 + 2 * (i % 3)), EOS), i % 2 == 0) for i in range(rows)]


def make_pairs(sequences: Sequence[TokenSequence]) -> SpanPairs:
    """One span over the first two tokens of each row and one over all that follow, the EOS included."""
    index, span, offset = [], [], 0
    for i, sequence in enumerate(sequences):
        n = len(sequence.response_ids)
        index += [[offset, offset + 1], *([offset + j, offset + j + 1] for j in range(2, n - 1))]
        span += [2 * i, *[2 * i + 1] * (n - 3)]
        offset += n
    return SpanPairs(torch.tensor(index), torch.tensor(span))


def run(
    objective: Objective,
    micro_batches: Sequence[Sequence[TokenSequence]],
    *,
    student: Toy,
    teacher: Toy,
    chunk: int | None = None,
    pad_id: int = PAD,
    vocabulary_size: int = V,
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Metrics and gradients of one accumulation window, by the same calls that training makes."""
    student.zero_grad()
    objective.zero_grad()
    batches = [make_batch(rows, pairs=make_pairs(rows), pad_id=pad_id) for rows in micro_batches]
    counts = objective.counts(batches)
    metrics: dict[str, float] = {}
    for batch in batches:
        part = objective.backward_from_hidden(
            student_hidden_ND=batch.predicting(student.hidden(batch.input_ids_BT)),
            student_head=student.head,
            teacher_hidden_ND=batch.predicting(teacher.hidden(batch.input_ids_BT)),
            teacher_head=teacher.head,
            batch=batch,
            counts=counts,
            vocabulary_size=vocabulary_size,
            chunk_positions=chunk,
        )
        metrics = {key: metrics.get(key, 0.0) + value for key, value in part.items()}
    parameters = [*student.named_parameters(prefix="student"), *objective.named_parameters(prefix="objective")]
    return metrics, {key: value.grad.clone() for key, value in parameters if value.grad is not None}


def assert_same(one: tuple[dict[str, float], dict[str, Tensor]], other: tuple[dict[str, float], dict[str, Tensor]]):
    """Equal metrics and gradients, up to the order of float32 sums."""
    torch.testing.assert_close(one[0], other[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(one[1], other[1], rtol=1e-4, atol=1e-5)
