"""The rows of the table, in its order: what is measured, in which unit, and what the ratio should be.

Knows how arms and losses are compared. Does not know how results are written.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.core.job_config import ScrgConfig
from app.core.recipes import RECIPES
from benchmarks.speed import losses, ours, peer
from benchmarks.speed.meter import Arm, Cost
from benchmarks.speed.models import Work, big_vocabulary, smollm

MGSR = [{"kind": "sft"}, {"kind": "dac_kl"}, {"kind": "span"}]
FORWARD_KL = [{"kind": "forward_kl"}]
ON_POLICY, GROUND_TRUTH = {"kind": "on_policy"}, {"kind": "ground_truth"}
RECIPE_ROUNDS: int = RECIPES["mgsr"]["scrg"]["rounds"]
RECIPE: Mapping[str, Any] = RECIPES["mgsr"]["sampling"]
CHOSEN = {"candidates": RECIPE["candidates"]}
TOGETHER = {"batches_per_generation": RECIPE["batches_per_generation"]}
# Which share of the steps is of which kind: in the recipe, and in the adaptive scheme with phi 0.5 and a full buffer,
# averaged over a run (there a step is fresh with probability phi (1 - step / steps), replayed with the rest of phi).
SHARES: Mapping[str, Mapping[str, float]] = {
    "the recipe's batches": {
        "fresh, together, chosen": RECIPE["student_fraction"],
        "given, chosen": 1 - RECIPE["student_fraction"],
    },
    "schedule and buffer": {"fresh, 12 rounds": 0.25, "replayed": 0.25, "given": 0.5},
}

# What the engine does from one of its events to the next, before it trains.
START = {"loading": "reading, checking and loading", "started": "the first evaluation"}


@dataclass(frozen=True)
class Row:
    """One line of the table. `ratio` is ours over the peer's; `target` its upper limit (None: reported only)."""

    row: str
    ours: float
    peer: float | None
    unit: str
    ratio: float | None
    target: float | None
    runs: int


@dataclass(frozen=True)
class Plan:
    """Sizes of a run of the benchmark: the real ones, or toy ones for the test suite."""

    folder: Path
    repeat: int = 5
    batch: int = 4
    layers: int = 10
    memory_batch: int = 8
    vocabularies: tuple[int, ...] = (151_936,)
    loss_positions: tuple[int, ...] = (1024, 8192)


def row(name: str, mine: float, theirs: float | None, unit: str, target: float | None, runs: int) -> Row:
    return Row(name, mine, theirs, unit, mine / theirs if theirs else None, target, runs)


def our_config(
    work: Work, *, terms: Sequence[Mapping[str, Any]], sampling: Mapping[str, Any], rounds: int, batch: int
) -> dict[str, Any]:
    """A job description as JSON; evaluation is kept out of the steps."""
    return {
        "teacher": {"model": work.teacher},
        "student": {"kind": "checkpoint", "model": work.student},
        "data": {"kind": "file", "path": work.rows, "dev_rows": 1, "max_response_tokens": work.new_tokens},
        "sampling": {**sampling, "max_new_tokens": work.new_tokens},
        "scrg": {"rounds": rounds},
        "losses": list(terms),
        "training": {"max_steps": 100_000, "batch_size": batch, "learning_rate": 1e-6, "checkpoint_every": 0},
        "evaluation": {"every_steps": 100_000, "rouge_rows": 0, "samples": 0},
    }


def peer_spec(work: Work, *, batch: int, **settings: Any) -> peer.PeerSpec:
    return peer.PeerSpec(
        teacher=work.teacher,
        student=work.student,
        prompts=work.prompts,
        responses=work.responses,
        batch_size=batch,
        new_tokens=work.new_tokens,
        **settings,
    )


def interleaved(arms: Mapping[str, Arm], *, repeat: int, cycles: Mapping[str, int]) -> dict[str, list[Cost]]:
    """`repeat` steps of every arm in turn after one to warm up, so that a busy machine slows all alike.

    In an arm of `cycles` one step in so many draws for all of them: the mean over a whole cycle stands for a step.
    """
    found: dict[str, list[Cost]] = {name: [] for name in arms}
    for _ in range(repeat + 1):
        for name, arm in arms.items():
            found[name].append(mean_step(arm, cycles.get(name, 1)))
    return {name: costs[1:] for name, costs in found.items()}


def mean_step(arm: Arm, steps: int) -> Cost:
    """What one of the next `steps` steps costs on average; notes are the last one's."""
    costs = [arm.step() for _ in range(steps)]
    seconds, tokens = (sum(getattr(cost, name) for cost in costs) for name in ("seconds", "tokens"))
    return Cost(seconds / steps, round(tokens / steps), None, costs[-1].notes)


def step_rows(plan: Plan) -> list[Row]:
    """Processor time of whole training steps, on SmolLM2-135M and a student of some of its layers."""
    work = smollm(plan.folder, layers=plan.layers)

    def mgsr(sampling: Mapping[str, Any], **data: Any) -> tuple[Callable[..., None], Any]:
        raw = our_config(work, terms=MGSR, sampling=sampling, rounds=RECIPE_ROUNDS, batch=plan.batch)
        return ours.run, raw | {"data": {**raw["data"], **data}}

    specs: dict[str, tuple[Callable[..., None], Any]] = {
        "forward_kl": (ours.run, our_config(work, terms=FORWARD_KL, sampling=ON_POLICY, rounds=0, batch=plan.batch)),
        "fresh": (ours.run, our_config(work, terms=MGSR, sampling=ON_POLICY, rounds=1, batch=plan.batch)),
        "fresh, 12 rounds": mgsr(ON_POLICY),
        "fresh, together": mgsr({**ON_POLICY, **TOGETHER}),
        "fresh, together, chosen": mgsr({**ON_POLICY, **TOGETHER, **CHOSEN}),
        "given": mgsr(GROUND_TRUTH),
        "given, chosen": mgsr({**GROUND_TRUTH, **CHOSEN}),
        # What is replayed costs what is given and read at every step.
        "replayed": mgsr(GROUND_TRUTH, teacher_states="off"),
        "peer": (peer.run, peer_spec(work, batch=plan.batch)),
    }
    arms = {name: Arm(*spec) for name, spec in specs.items()}
    cycles = {name: TOGETHER["batches_per_generation"] for name in arms if "together" in name}
    try:
        costs = interleaved(arms, repeat=plan.repeat, cycles=cycles)
    finally:
        for arm in arms.values():
            arm.close()
    median = {name: statistics.median(cost.seconds for cost in found) for name, found in costs.items()}
    tokens = {name: statistics.mean(cost.tokens for cost in found) for name, found in costs.items()}
    per_token = {name: 1000 * median[name] / tokens[name] for name in median}
    unit, runs, all_rounds = "processor s per step", plan.repeat, median["fresh, 12 rounds"]
    together = f"mgsr step on fresh samples, the recipe's {TOGETHER['batches_per_generation']} batches at a time"
    return [
        row("plain on-policy forward KL", median["forward_kl"], median["peer"], unit, 0.5, runs),
        row("mgsr step on fresh samples, 1 SCRG round", median["fresh"], median["peer"], unit, 0.75, runs),
        row("mgsr step on fresh samples, the recipe's 12 rounds", all_rounds, median["peer"], unit, 0.75, runs),
        row(together, median["fresh, together"], median["peer"], unit, 0.75, runs),
        *(_mixed_row(name, shares, per_token, runs) for name, shares in SHARES.items()),
        *start_rows(arms["fresh"].ready["phases"]),
    ]


def _mixed_row(name: str, shares: Mapping[str, float], per_token: Mapping[str, float], runs: int) -> Row:
    mixed = sum(share * per_token[kind] for kind, share in shares.items())
    return row(f"mgsr with {name}, per token", mixed, per_token["peer"], "processor ms per token", 0.4, runs)


def start_rows(phases: Mapping[str, float]) -> list[Row]:
    """Where the time goes before the first step: `phases` has the processor seconds at which each phase began."""
    began = [*phases.items()]
    ends = [second for _, second in began[1:]]
    whole = row("start of a job to its first step", phases["training"], None, "processor s", None, 1)
    parts = [
        row(f"start of a job: {START.get(name, name)}", end - start, None, "processor s", None, 1)
        for (name, start), end in zip(began, ends, strict=False)
    ]
    return [whole, *parts]


def memory_rows(plan: Plan) -> Iterator[Row]:
    """Peak of what one step allocates above the loaded models and the optimizer's state; of ours the step that draws
    for all that are drawn together."""
    small = smollm(plan.folder, layers=plan.layers)
    works = [(49_152, small)]
    for vocabulary in plan.vocabularies:
        size = {"vocabulary": vocabulary, "prompt_tokens": 82, "new_tokens": 64}
        works.append((vocabulary, big_vocabulary(plan.folder, like=small.teacher, **size)))
    for vocabulary, work in works:
        sampling = {**ON_POLICY, **TOGETHER}
        raw = our_config(work, terms=MGSR, sampling=sampling, rounds=RECIPE_ROUNDS, batch=plan.memory_batch)
        mine = peak(ours.run, raw, after=TOGETHER["batches_per_generation"])
        for trainer, target in (("distillation", 0.5), ("gkd", 0.25)):
            theirs = peak(peer.run, peer_spec(work, batch=plan.memory_batch, trainer=trainer))
            name = f"peak memory of a step, batch {plan.memory_batch}, V {vocabulary:,}, against {trainer}"
            yield row(name, mine, theirs, "MiB", target, 1)


def peak(engine: Callable[..., None], spec: Any, *, after: int = 1) -> float:
    """MiB of the step behind the first `after`, which warm up."""
    with Arm(engine, spec) as arm:
        mean_step(arm, after)
        mib = arm.step("memory").peak_mib
    assert mib is not None
    return mib


def loss_rows(plan: Plan) -> list[Row]:
    """The losses alone, on the same hidden states, against plain forward KL."""
    seconds, mib = losses.over_forward_kl(repeat=plan.repeat)
    return [
        row("DAC-KL + span over forward KL, time", *seconds, "processor s", 1.3, plan.repeat),
        row("DAC-KL + span over forward KL, peak memory", *mib, "MiB", 1.0, 1),
    ]


def liger_rows(plan: Plan) -> Iterator[Row]:
    """Our chunked loss against Liger's; beyond 4,096 tokens, where a run takes minutes, once."""
    for positions in plan.loss_positions:
        runs = plan.repeat if positions <= 4096 else 1
        for unit, pair in losses.against_liger(positions=positions, repeat=runs).items():
            name = f"chunked JSD against Liger's, {positions:,} tokens, V 151,936, {unit}"
            yield row(name, *pair, unit, 1.0, runs if unit == "processor s" else 1)


def scrg_rows(plan: Plan) -> Iterator[Row]:
    work = smollm(plan.folder, layers=plan.layers)
    rule = {"position": "first", "teacher_token": "greedy"}
    for name, config, target in (
        ("one SCRG round over the generation before it", ScrgConfig(**rule), 0.6),
        ("the recipe's 12 SCRG rounds over the generation", ScrgConfig(**rule, rounds=RECIPE_ROUNDS), None),
        ("one SCRG round at the largest KL over the generation before it", ScrgConfig(), 0.6),
    ):
        pair = losses.scrg_over_generation(work, batch=plan.batch, repeat=plan.repeat, config=config)
        yield row(name, *pair, "processor s", target, plan.repeat)


GROUPS: dict[str, Callable[[Plan], Iterable[Row]]] = {
    "losses": loss_rows,
    "scrg": scrg_rows,
    "steps": step_rows,
    "memory": memory_rows,
    "liger": liger_rows,
}
