"""What is measured without a training step: the losses on the same hidden states, and one SCRG round.

Knows processor time and what torch allocates. Does not know engines.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import psutil
import torch
from transformers import AutoTokenizer

from app.core.job_config import ScrgConfig
from app.core.loss_config import JsdLoss
from benchmarks.loss_cost import Problem, measure
from benchmarks.speed.meter import Arm, Meter
from benchmarks.speed.models import Work
from worker.distill.allocator import keep_freed_memory
from worker.distill.assembly import LOGITS_PER_CHUNK
from worker.distill.data import Row
from worker.distill.generate import SamplingSettings, sample
from worker.distill.models import SplitModel, load_model
from worker.distill.objective import Objective
from worker.distill.rollout import draw_fresh
from worker.distill.timing import Clock

BIG_VOCABULARY = 151_936
Pair = tuple[float, float]


def over_forward_kl(
    *, positions: int = 512, vocabulary: int = 49_152, width: int = 576, repeat: int
) -> tuple[Pair, Pair]:
    """(seconds, MiB) of DAC-KL + span, each with forward KL's."""
    torch.set_num_threads(1)
    problem = Problem.make(positions=positions, width=width, vocabulary_size=vocabulary, device="cpu")
    chunk = LOGITS_PER_CHUNK["cpu"] // vocabulary
    costs = {cost.objective: cost for cost in measure(problem, chunk_positions=chunk, repeat=repeat)}
    ours, plain = costs["dac_kl + span"], costs["forward_kl"]
    return (ours.seconds, plain.seconds), (ours.peak_mib, plain.peak_mib)


@dataclass(frozen=True)
class JsdSpec:
    """A contender's problem, and the bytes of address space it may take: one that needs more fails, and nobody else."""

    way: Literal["ours", "liger"]
    positions: int
    vocabulary: int
    width: int
    limit_bytes: int


def run_jsd(spec: JsdSpec, meter: Meter) -> None:
    """An engine for `Arm`: chunked JSD, forward and backward, float32, once per order.

    Freed memory goes back to the system: kept, Liger's 5 GiB at 512 tokens became 11 GiB of the machine's.
    """
    resource.setrlimit(resource.RLIMIT_AS, (spec.limit_bytes, spec.limit_bytes))
    problem = Problem.make(positions=spec.positions, width=spec.width, vocabulary_size=spec.vocabulary, device="cpu")
    once = _ours(problem) if spec.way == "ours" else _ligers(problem)
    while meter.boundary(spec.positions):
        once()


def _ours(problem: Problem) -> Callable[[], None]:
    chunk = max(1, LOGITS_PER_CHUNK["cpu"] // problem.student_head.out_features)
    return partial(problem.step, Objective((JsdLoss(),)), chunk)


def _ligers(problem: Problem) -> Callable[[], None]:
    from liger_kernel.chunked_loss import LigerFusedLinearJSDLoss

    liger = LigerFusedLinearJSDLoss(weight_hard_loss=0.0, weight_soft_loss=1.0, beta=0.5, compiled=False)
    student, teacher = problem.student_head, problem.teacher_head

    def once() -> None:
        student.zero_grad(set_to_none=False)
        labels_N = problem.batch.labels_N
        liger(problem.student_ND, student.weight, problem.teacher_ND, teacher.weight, labels_N).backward()

    return once


def against_liger(
    *, positions: int, repeat: int, vocabulary: int = BIG_VOCABULARY, width: int = 256
) -> dict[str, Pair]:
    """Our chunked JSD and Liger's (`compiled=False`): processor seconds and MiB. Each has a process of its own, and
    they run in turn; the run whose memory is followed warms up, too."""
    seconds: dict[str, list[float]] = {"ours": [], "liger": []}
    peaks: dict[str, float | None] = {}
    limit_bytes = psutil.virtual_memory().available * 3 // 4
    with (
        Arm(run_jsd, JsdSpec("ours", positions, vocabulary, width, limit_bytes)) as ours,
        Arm(run_jsd, JsdSpec("liger", positions, vocabulary, width, limit_bytes)) as liger,
    ):
        arms = {"ours": ours, "liger": liger}
        for name, arm in arms.items():
            peaks[name] = arm.step("memory").peak_mib
        for _ in range(repeat):
            for name, arm in arms.items():
                seconds[name].append(arm.step().seconds)
    assert peaks["ours"] is not None
    assert peaks["liger"] is not None
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {"processor s": (medians["ours"], medians["liger"]), "MiB": (peaks["ours"], peaks["liger"])}


def scrg_over_generation(work: Work, *, batch: int, repeat: int, config: ScrgConfig) -> Pair:
    """Processor seconds that SCRG adds to a fresh batch, and those of sampling it.

    What is added is the difference between drawing a batch with SCRG and without, with the same random numbers: the
    teacher's pass, which the loss needs without SCRG too, is in both.
    """
    torch.set_num_threads(1)
    keep_freed_memory()
    tokenizer = AutoTokenizer.from_pretrained(work.teacher)
    models: list[Any] = [
        load_model(name, device=torch.device("cpu"), dtype=torch.bfloat16).requires_grad_(False)
        for name in (work.teacher, work.student)
    ]
    teacher, student = (SplitModel(model, vocabulary_size=len(tokenizer)) for model in models)
    rows = [
        Row(i, "", tuple(tokenizer.apply_chat_template(prompt, add_generation_prompt=True)["input_ids"]), None, None)
        for i, prompt in enumerate(work.prompts[:batch], start=1)
    ]
    settings = SamplingSettings(
        max_new_tokens=work.new_tokens, temperature=1, top_p=1, eos_ids=frozenset(), pad_id=0, ignore_eos=True
    )

    def fresh(scrg: ScrgConfig, generator: torch.Generator) -> None:
        draw_fresh(
            rows,
            teacher=teacher,
            student=student,
            config=scrg,
            settings=settings,
            generator=generator,
            tokenizer=tokenizer,
            clock=Clock(),
        )

    def sampled(generator: torch.Generator) -> None:
        sample(student, [row.prompt_ids for row in rows], settings=settings, generator=generator)

    ways = (sampled, partial(fresh, config.model_copy(update={"rounds": 0})), partial(fresh, config))
    times = [[_seconds(way, seed) for way in ways] for seed in range(repeat + 1)][1:]
    return (
        statistics.median(revised - plain for _, plain, revised in times),
        statistics.median(generation for generation, _, _ in times),
    )


def _seconds(way: Callable[[torch.Generator], None], seed: int) -> float:
    generator = torch.Generator().manual_seed(seed)
    start = time.process_time()
    way(generator)
    return time.process_time() - start
