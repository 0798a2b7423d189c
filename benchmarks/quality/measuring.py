"""One training run by the engine's own trainer, and what is measured of its student afterwards.

Knows assemblies and held-out rows. Does not know scales, regimes or contenders.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from app.core.events import Emit, Event, StepDone
from app.core.job_config import EvaluationConfig
from app.core.loss_config import ForwardKlLoss
from app.core.prompt_encoder import PromptEncoder
from worker.distill.assembly import Assembly
from worker.distill.checkup import Examiner
from worker.distill.data import Row
from worker.distill.evaluate import HeldOut
from worker.distill.generate import SamplingSettings
from worker.distill.keeper import Keeper, Teller
from worker.distill.models import SplitModel
from worker.distill.objective import Objective
from worker.distill.trainer import Trainer
from worker.distill.types import TokenSequence, make_batch

CURVE_POINTS = 50
_FOLLOWED = ("dac_kl/", "scrg/", "loss/", "sampling/")


@dataclass(frozen=True)
class Exam:
    """Held-out rows that students answer greedily, and if there are `sampled_rows` once at temperature 1, for the KL
    over their own samples: a few bad samples move it, so it rests on all rows. The first `sampled_rows` are answered
    at several temperatures."""

    teacher: SplitModel
    encoder: PromptEncoder
    settings: SamplingSettings
    rows: Sequence[Row]
    sampled_rows: int
    batch_size: int
    exact_match: bool = True
    temperatures: tuple[float, ...] = (0.3, 0.7, 1.0)
    seeds: int = 1

    def measure(self, student: SplitModel) -> dict[str, float]:
        """What `Examiner` measures: greedy answers over all rows, samples over the first ones."""
        measured = self._over_all.examine(student).metrics
        if self.sampled_rows:
            sampled = self._over_first.examine(student).metrics
            measured |= {name: value for name, value in sampled.items() if name not in measured}
        return measured

    @cached_property
    def _over_all(self) -> Examiner:
        return self._examiner(self.rows, own_samples=self.sampled_rows > 0)

    @cached_property
    def _over_first(self) -> Examiner:
        return self._examiner(self.rows[: self.sampled_rows], temperatures=self.temperatures)

    def _held_out(self, rows: Sequence[Row]) -> HeldOut:
        batches = [
            make_batch(
                [TokenSequence(row.prompt_ids, row.response_ids or (), True) for row in rows[i : i + self.batch_size]],
                pad_id=self.settings.pad_id,
                device=self.teacher.device,
            )
            for i in range(0, len(rows), self.batch_size)
        ]
        return HeldOut.prepare(rows, batches, teacher=self.teacher)

    def _examiner(self, rows: Sequence[Row], **asked: Any) -> Examiner:
        return Examiner(
            teacher=self.teacher,
            held_out=self._held_out(rows),
            objective=Objective([ForwardKlLoss()]),
            encoder=self.encoder,
            settings=self.settings,
            evaluation=EvaluationConfig(
                rouge_rows=len(rows), exact_match=self.exact_match, samples=0, seeds=self.seeds, **asked
            ),
            batch_size=self.batch_size,
            chunk_positions=None,
        )


def train_and_measure(run: Assembly, exam: Exam) -> dict[str, Any]:
    """Trains the assembled student and examines it. `seconds` is processor time of training alone, `curve` what the
    steps reported, thinned out to `CURVE_POINTS` means, `ground_truth_batches` how many steps took rows with a
    response, whoever wrote it."""
    steps: dict[str, list[float]] = {}
    sources: Counter[str] = Counter()

    def listen(event: Event) -> None:
        if isinstance(event, StepDone):
            sources[event.source] += 1
            for name, value in event.metrics.items():
                if name.startswith(_FOLLOWED):
                    steps.setdefault(name, []).append(value)

    start = time.process_time()
    train(run, listen)
    seconds = time.process_time() - start
    return {
        "seconds": seconds,
        "ground_truth_batches": sources["ground_truth"],
        "curve": {name: thinned(values) for name, values in steps.items()},
        **exam.measure(run.sampler.lm),
    }


def thinned(values: Sequence[float], points: int = CURVE_POINTS) -> list[float]:
    """Means of `points` equal stretches of `values` (or the values, if they are fewer)."""
    bounds = [round(i * len(values) / min(points, len(values))) for i in range(min(points, len(values)) + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(bounds)]


def train(run: Assembly, listen: Emit) -> None:
    """All steps of the job, with nothing kept on disk."""
    tell = Teller(listen)
    Trainer(run, keeper=Keeper(None, config=run.config, tell=tell), emit=tell, should_stop=lambda: None).train()
