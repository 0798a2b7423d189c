"""What the losses cost: time and peak memory of DAC-KL + span over plain forward KL, on the same hidden states.

    python -m benchmarks.loss_cost [--json FILE] [--positions 1024] [--chunk 128] [--repeat 5] [--device cpu]

Each figure is one call of `Objective.backward_from_hidden`: both heads, the losses, and the gradients of the student's
head and hidden states. The bodies of the models, which cost far more and do not depend on the loss, are left out.
Time on a CPU is processor time, which other programs disturb little, on CUDA elapsed time. Memory is the peak of what
torch allocated during the call.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from app.core.loss_config import DacKlLoss, ForwardKlLoss, LossConfig, SftLoss, SpanLoss
from worker.distill.objective import Objective
from worker.distill.types import Batch, SpanPairs, TokenSequence, make_batch

OBJECTIVES: dict[str, tuple[LossConfig, ...]] = {
    "forward_kl": (ForwardKlLoss(),),
    "span": (SpanLoss(),),
    "dac_kl": (DacKlLoss(),),
    "dac_kl + span": (DacKlLoss(), SpanLoss()),
    "sft + dac_kl + span": (SftLoss(), DacKlLoss(), SpanLoss()),
}


@dataclass(frozen=True)
class Cost:
    objective: str
    chunk_positions: int | None
    seconds: float
    seconds_over_forward_kl: float
    peak_mib: float
    peak_over_forward_kl: float


@dataclass(frozen=True)
class Problem:
    """Random hidden states, heads and response rows, of which two thirds of the adjacent tokens share a span."""

    student_ND: Tensor
    teacher_ND: Tensor
    student_head: nn.Linear
    teacher_head: nn.Linear
    batch: Batch

    @classmethod
    def make(cls, *, positions: int, width: int, vocabulary_size: int, device: str) -> Problem:
        torch.manual_seed(0)
        rows, length = 8, positions // 8
        sequences = [
            TokenSequence((1,), tuple(torch.randint(vocabulary_size, (length,)).tolist()), True) for _ in range(rows)
        ]
        starts = [row * length + i for row in range(rows) for i in range(length - 1) if i % 3 < 2]
        pairs = SpanPairs(torch.tensor([[i, i + 1] for i in starts]), torch.tensor([i // 3 for i in starts]))
        heads = [nn.Linear(width, vocabulary_size, bias=False, device=device) for _ in range(2)]
        for head in heads:
            nn.init.normal_(head.weight, std=3 / width**0.5)
        heads[1].weight.data.mul_(0.3).add_(heads[0].weight.data)
        states_ND = torch.randn(rows * length, width, device=device)
        batch = make_batch(sequences, pairs=pairs, pad_id=0, device=device)
        return cls(states_ND.clone().requires_grad_(), states_ND, heads[0], heads[1], batch)

    def step(self, objective: Objective, chunk_positions: int | None) -> None:
        self.student_head.zero_grad(set_to_none=False)
        objective.backward_from_hidden(
            student_hidden_ND=self.student_ND,
            student_head=self.student_head,
            teacher_hidden_ND=self.teacher_ND,
            teacher_head=self.teacher_head,
            batch=self.batch,
            counts=objective.counts([self.batch]),
            vocabulary_size=self.student_head.out_features,
            chunk_positions=chunk_positions,
        )


def measure(problem: Problem, *, chunk_positions: int | None, repeat: int) -> list[Cost]:
    """Costs of every objective; rounds go through all of them in turn, so that a busy machine slows all alike."""
    device = problem.student_ND.device
    steps = {
        name: partial(problem.step, Objective(configs).to(device), chunk_positions)
        for name, configs in OBJECTIVES.items()
    }
    for step in steps.values():
        step()  # warms up
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeat):
        for name, step in steps.items():
            times[name].append(_seconds(step, device))
    seconds = {name: statistics.median(values) for name, values in times.items()}
    peaks = {name: _peak_mib(step, device) for name, step in steps.items()}
    base_s, base_mib = seconds["forward_kl"], peaks["forward_kl"]
    return [
        Cost(name, chunk_positions, seconds[name], seconds[name] / base_s, peaks[name], peaks[name] / base_mib)
        for name in steps
    ]


def _seconds(step: Callable[[], None], device: torch.device) -> float:
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    start = clock()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def _peak_mib(step: Callable[[], None], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(accumulate(event.nbytes() for event in events)) / 2**20


def show(costs: Sequence[Cost], title: str) -> None:
    table = Table(title=title)
    for column in ("objective", "chunk", "seconds", "x forward_kl", "peak MiB", "x forward_kl"):
        table.add_column(column, justify="left" if column == "objective" else "right")
    for c in costs:
        table.add_row(
            c.objective,
            str(c.chunk_positions or "whole"),
            f"{c.seconds:.3f}",
            f"{c.seconds_over_forward_kl:.2f}",
            f"{c.peak_mib:.0f}",
            f"{c.peak_over_forward_kl:.2f}",
        )
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--positions", type=int, default=1024)
    parser.add_argument("--vocabulary", type=int, default=49152)
    parser.add_argument("--width", type=int, default=576)
    parser.add_argument("--chunk", type=int, nargs="*", default=[128], help="slice lengths; 0 is all at once")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    problem = Problem.make(
        positions=args.positions, width=args.width, vocabulary_size=args.vocabulary, device=args.device
    )
    costs = [c for chunk in args.chunk for c in measure(problem, chunk_positions=chunk or None, repeat=args.repeat)]
    show(costs, f"N={args.positions}, V={args.vocabulary}, D={args.width}, {args.device}")
    if args.json:
        settings = {name: value for name, value in vars(args).items() if name != "json"}
        report = {"settings": settings, "costs": [asdict(cost) for cost in costs]}
        args.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
