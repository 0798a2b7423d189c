"""How a step of `mgsr` grows: time and peak memory over response length, vocabulary, batch and layers, and a plot.

    python -m benchmarks.speed.growth [--folder DIR]

One size is changed at a time, on random Llamas with a small body (width 128, so that what grows is seen early). A step
is one on fresh samples with as many SCRG rounds as the recipe, in bfloat16 where the processor has it, one thread.
Knows sizes and one engine. Does not compare engines.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.profiler import ProfilerActivity, profile
from transformers import PreTrainedTokenizerFast

from app.core.job_config import DistillConfig
from benchmarks.machine import describe
from benchmarks.speed.meter import peak_of
from benchmarks.speed.models import Work, random_pair
from benchmarks.speed.report import write_page
from benchmarks.speed.rows import MGSR, ON_POLICY, RECIPE_ROUNDS, our_config
from worker.distill.allocator import keep_few_kernels, keep_freed_memory
from worker.distill.assembly import assemble
from worker.distill.step import Stepper

matplotlib.use("svg")
from matplotlib import pyplot as plt

ROOT = Path(__file__).parents[2]
RESULTS, PLOT = ROOT / "benchmarks/results/growth.json", ROOT / "docs/benchmarks/growth.svg"
SPEED, PAGE = ROOT / "benchmarks/results/speed.json", ROOT / "docs/benchmarks/speed.md"


@dataclass(frozen=True)
class Size:
    """What a step's cost depends on: new tokens per response, vocabulary, rows, and layers of both models."""

    tokens: int = 128
    vocabulary: int = 16_384
    batch: int = 4
    layers: int = 4


# Which size is changed, and to what; the others keep their defaults.
SWEEPS: Mapping[str, Sequence[int]] = {
    "tokens": (128, 256, 512, 1024),
    "vocabulary": (8_192, 16_384, 49_152, 98_304, 151_936),
    "batch": (1, 2, 4, 8, 16),
    "layers": (2, 4, 8, 16),
}
NAMES = {"tokens": "tokens per response", "vocabulary": "vocabulary", "batch": "rows", "layers": "layers"}


@dataclass(frozen=True)
class Point:
    swept: str
    value: int
    seconds: float
    peak_mib: float


def measured(work: Work, *, batch: int, repeat: int) -> tuple[float, float]:
    """Processor seconds (median after one step to warm up) and peak MiB above what lived at its start, of a step."""
    raw = our_config(work, terms=MGSR, sampling=ON_POLICY, rounds=RECIPE_ROUNDS, batch=batch)
    run = assemble(DistillConfig.model_validate(raw), emit=lambda event: None, should_stop=lambda: None)
    stepper = Stepper(run)
    stepper.take(1)
    seconds = []
    for step in range(2, 2 + repeat):
        start = time.process_time()
        stepper.take(step)
        seconds.append(time.process_time() - start)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        stepper.take(2 + repeat)
    return statistics.median(seconds), peak_of(profiled)


def byte_tokenizer() -> Any:
    """One token per byte, so that any vocabulary from 258 will do."""
    bytes_ = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(bytes_)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>")
    fast.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}:"
    return fast


def toy_work(folder: Path, size: Size) -> Work:
    """Prompts of 82 tokens and responses of `size.tokens`; one token in `vocabulary` drawn ends a response early."""
    teacher, student = random_pair(folder, byte_tokenizer(), vocabulary=size.vocabulary, width=128, layers=size.layers)
    path = folder / f"bytes-{size.tokens}.jsonl"
    lines = [
        json.dumps({"messages": [{"role": "user", "content": f"{i:03d}" * 27}], "response": "r" * size.tokens})
        for i in range(24)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Work(teacher, student, str(path), [], [], size.tokens)


def sweep(folder: Path, *, repeat: int, sweeps: Mapping[str, Sequence[int]]) -> Iterator[Point]:
    for swept, values in sweeps.items():
        for value in values:
            size = replace(Size(), **{swept: value})
            yield Point(swept, value, *measured(toy_work(folder, size), batch=size.batch, repeat=repeat))


def draw(points: Sequence[Point], path: Path) -> None:
    """One small plot per size, both axes logarithmic, with a line of slope 1 through the first point."""
    sweeps = list(dict.fromkeys(point.swept for point in points))
    figure, axes = plt.subplots(2, len(sweeps), figsize=(3 * len(sweeps), 5), squeeze=False, layout="constrained")
    for column, swept in enumerate(sweeps):
        mine = [point for point in points if point.swept == swept]
        x = [point.value for point in mine]
        for line, (label, y) in enumerate(
            (("processor s", [point.seconds for point in mine]), ("peak MiB", [point.peak_mib for point in mine]))
        ):
            axis = axes[line][column]
            axis.loglog(x, y, marker="o")
            axis.loglog(x, [y[0] * value / x[0] for value in x], linestyle=":", color="grey")
            axis.set_xticks(x, [f"{value:,}" for value in x], rotation=45, fontsize=7)
            axis.minorticks_off()
            axis.set_xlabel(NAMES[swept])
            if column == 0:
                axis.set_ylabel(label)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "stillhouse-bench-growth")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    keep_freed_memory()
    keep_few_kernels()
    points: list[Point] = []
    for point in sweep(args.folder, repeat=args.repeat, sweeps=SWEEPS):
        print(point, flush=True)
        points.append(point)
        report = {"machine": describe(), "standard": asdict(Size()), "points": [asdict(one) for one in points]}
        RESULTS.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        draw(points, PLOT)
        write_page(PAGE, speed=SPEED)


if __name__ == "__main__":
    main()
