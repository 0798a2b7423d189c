"""What is measured without a training step: the losses on the same hidden states, and one SCRG round.

Knows processor time and what torch allocates. Does not know engines.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import AutoTokenizer

from app.core.job_config import ScrgConfig
from app.core.loss_config import JsdLoss
from benchmarks.loss_cost import Problem, measure
from benchmarks.speed.meter import peak_of
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


def against_liger(
    *, positions: int, repeat: int, vocabulary: int = BIG_VOCABULARY, width: int = 256
) -> dict[str, Pair]:
    """Our chunked JSD and Liger's (`compiled=False`), forward and backward, float32: processor seconds and MiB."""
    from liger_kernel.chunked_loss import LigerFusedLinearJSDLoss

    torch.set_num_threads(1)
    keep_freed_memory()
    problem = Problem.make(positions=positions, width=width, vocabulary_size=vocabulary, device="cpu")
    objective = Objective((JsdLoss(),))
    liger = LigerFusedLinearJSDLoss(weight_hard_loss=0.0, weight_soft_loss=1.0, beta=0.5, compiled=False)

    def theirs() -> None:
        problem.student_head.zero_grad(set_to_none=False)
        student, teacher = problem.student_ND, problem.teacher_ND
        liger(
            student, problem.student_head.weight, teacher, problem.teacher_head.weight, problem.batch.labels_N
        ).backward()

    ways: Mapping[str, Callable[[], None]] = {
        "ours": partial(problem.step, objective, max(1, LOGITS_PER_CHUNK["cpu"] // vocabulary)),
        "liger": theirs,
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    peaks: dict[str, float] = {}
    for name, way in ways.items():
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            way()  # warms up, too
        peaks[name] = peak_of(profiled)
    for _ in range(repeat):
        for name, way in ways.items():
            start = time.process_time()
            way()
            seconds[name].append(time.process_time() - start)
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
