"""One optimizer step: draw a window of micro-batches, add up loss and gradients, move the weights.

Knows where batches come from and what belongs to the state of a run between two steps. Does not know when steps are
taken, nor who hears of them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from app.core.errors import NonFiniteLoss
from app.core.events import Correction
from app.core.job_config import GroundTruthSampling
from worker.distill.assembly import Assembly
from worker.distill.data import Row, RowOrder, ground_truth, kept_states
from worker.distill.evaluate import response_states
from worker.distill.fresh import WaitingBatches
from worker.distill.lean_reading import read_responses
from worker.distill.optimization import Optimization
from worker.distill.rollout import FreshBatch, draw_fresh
from worker.distill.row_choice import RowChoice
from worker.distill.schedule import BatchSchedule, Source
from worker.distill.timing import Clock
from worker.distill.trainee import trainee
from worker.distill.training_state import State, set_tensors, trained_tensors
from worker.distill.types import Batch


@dataclass(frozen=True)
class Drawn:
    """One micro-batch with what is known of it: where it is from, teacher states if they are there already."""

    batch: Batch
    source: Source
    teacher_hidden_ND: Tensor | None
    metrics: dict[str, float]
    correction: Correction | None = None


@dataclass(frozen=True)
class StepTaken:
    """A step's micro-batches, their metrics as means over the window, and how long it took."""

    window: list[Drawn]
    metrics: dict[str, float]
    seconds: float

    @property
    def tokens(self) -> int:
        return sum(drawn.batch.num_positions for drawn in self.window)


class Stepper:
    """What moves from step to step: weights, optimizer, order of rows, schedule of sources, random numbers."""

    def __init__(self, run: Assembly) -> None:
        self._run = run
        self._trainee = trainee(run.student, run.sampler, dtype=run.dtype)
        training = run.config.training
        self.optimization = Optimization(
            [
                {"params": list(run.student.model.parameters()), "lr": training.learning_rate},
                *run.objective.parameter_groups(training.learning_rate),
            ],
            training=training,
            steps=training.max_steps,
            accelerator=run.accelerator,
        )
        self._rows = self._choice(run.train_rows, seed=training.seed)
        answered = [row for row in run.train_rows if row.response_ids is not None]
        # Prompts without a response are for the student's samples only (data.responses: student).
        everyone = len(answered) == len(run.train_rows)
        self._answered = self._rows if everyone else self._choice(answered, seed=training.seed + 3)
        self.schedule = BatchSchedule(run.config.sampling, max_steps=training.max_steps, seed=training.seed + 1)
        self._generator = torch.Generator().manual_seed(training.seed + 2)
        self._waiting = WaitingBatches(run.device)
        self.clock = Clock()
        self.num_fresh = 0

    def take(self, step: int) -> StepTaken:
        """Step number `step`, counted from 1. Raises NothingToLearn, and NonFiniteLoss before the weights move."""
        with self.clock.rest("idle"):
            return self._take(step)

    def _take(self, step: int) -> StepTaken:
        start = time.perf_counter()
        window = [self._draw(step) for _ in range(self._run.config.training.gradient_accumulation)]
        counts = self._run.objective.counts([drawn.batch for drawn in window])
        metrics: dict[str, float] = {}
        try:
            for drawn in window:
                for name, value in self._backward(drawn, counts).items():
                    metrics[name] = metrics.get(name, 0.0) + value
            with self.clock("student"):
                metrics["train/grad_norm"] = self._move(window, counts)
        except NonFiniteLoss as error:
            raise NonFiniteLoss(f"step {step}: {error.message}", error.field) from error
        for drawn in window:
            for name, value in drawn.metrics.items():
                metrics[name] = metrics.get(name, 0.0) + value / sum(name in other.metrics for other in window)
        return StepTaken(window, metrics, time.perf_counter() - start)

    def state(self) -> State:
        """All that the steps to come depend on, but the student's weights."""
        return {
            "optimization": self.optimization.state(),
            "objective": trained_tensors(self._run.objective),
            "rows": self._rows.state(),
            "answered": self._answered.state(),
            "schedule": self.schedule.state(),
            "generator": self._generator.get_state(),
            "waiting": self._waiting.state(),
            "num_fresh": self.num_fresh,
        }

    def load(self, state: State) -> None:
        """`state()` of a run whose weights the student has already."""
        self.optimization.load(state["optimization"])
        set_tensors(self._run.objective, state["objective"])
        self._rows.load(state["rows"])
        self._answered.load(state["answered"])
        self.schedule.load(state["schedule"])
        self._generator.set_state(state["generator"])
        self._waiting.load(state.get("waiting", []))  # checkpoints from before there was such a thing have none
        self.num_fresh = state["num_fresh"]
        self._run.sampler.refresh()

    def _draw(self, step: int) -> Drawn:
        run, size = self._run, self._run.config.training.batch_size
        source = self.schedule.choose(step - 1)
        if source == "fresh":
            self.num_fresh += 1
            fresh = self._next_fresh(step)
            # Only now: where the schedule takes a batch from does not depend on how many are drawn at once.
            self.schedule.store(fresh.to_store)
            with self.clock("data"):
                batch = run.batch(fresh.sequences)
            return Drawn(batch, source, fresh.teacher_hidden_ND, fresh.metrics, fresh.correction(step))
        if source == "replay":
            with self.clock("data"):
                return Drawn(run.batch(self.schedule.buffer.draw(size)), source, None, {})
        rows = self._take_rows(self._answered, size)
        with self.clock("data"):
            states_ND = kept_states(rows, run.device) if run.objective.needs_teacher else None
            return Drawn(run.batch(ground_truth(rows)), source, states_ND, {})

    def _next_fresh(self, step: int) -> FreshBatch:
        """The next batch of the student's samples; when none is waiting, as many are drawn at once as the settings say,
        but not more than the steps that are left can use."""
        run, training, sampling = self._run, self._run.config.training, self._run.config.sampling
        if not self._waiting:
            assert not isinstance(sampling, GroundTruthSampling), "batches from the data alone"
            left = (training.max_steps - step + 1) * training.gradient_accumulation
            batches = max(1, min(sampling.batches_per_generation, left))
            rows = [row for _ in range(batches) for row in self._take_rows(self._rows, training.batch_size)]
            generation = draw_fresh(
                rows,
                teacher=run.teacher,
                student=run.sampler.lm,
                config=run.config.scrg,
                settings=run.settings,
                generator=self._generator,
                tokenizer=run.tokenizer,
                clock=self.clock,
                along=training.decoding == "fast",
            )
            self._waiting.put(generation, batches=batches)
        return self._waiting.take()

    def _choice(self, rows: Sequence[Row], *, seed: int) -> RowChoice:
        training, sampling = self._run.config.training, self._run.config.sampling
        alike = training.batch_size * sampling.candidates if training.bucket_by_length else None
        order = RowOrder(rows, seed=seed, alike=alike)
        return RowChoice(order, candidates=sampling.candidates, skip_known=sampling.skip_known)

    def _take_rows(self, choice: RowChoice, size: int) -> list[Row]:
        run = self._run
        return choice.take(
            size,
            teacher=run.teacher,
            student=run.sampler.lm,
            reads_teacher=run.objective.needs_teacher,
            config=run.config.scrg,
            settings=run.settings,
            generator=self._generator,
            clock=self.clock,
        )

    def _backward(self, drawn: Drawn, counts: dict[str, int]) -> dict[str, float]:
        run = self._run
        teacher_ND = drawn.teacher_hidden_ND
        if teacher_ND is None and run.objective.needs_teacher:
            with self.clock("teacher"), torch.no_grad():
                teacher_ND = read_responses(run.teacher, drawn.batch)
        with torch.autocast(run.device.type, run.dtype, enabled=run.dtype != torch.float32):
            with self.clock("student"):
                student_ND = response_states(self._trainee, drawn.batch)
            with self.clock("loss"):
                return run.objective.backward_from_hidden(
                    student_hidden_ND=student_ND,
                    student_head=self._trainee.head,
                    teacher_hidden_ND=teacher_ND,
                    teacher_head=run.teacher.head,
                    batch=drawn.batch,
                    counts=counts,
                    vocabulary_size=run.teacher.vocabulary_size,
                    chunk_positions=run.chunk_positions,
                )

    def _move(self, window: list[Drawn], counts: dict[str, int]) -> float:
        """The optimizer's step; the gradient's norm."""
        try:
            norm = self.optimization.step()
        except NonFiniteLoss as error:
            raise NonFiniteLoss(f"{error.message} ({self._culprits(window, counts)})") from error
        self._run.sampler.refresh()
        return norm

    def _culprits(self, window: list[Drawn], counts: dict[str, int]) -> str:
        """Which terms alone give a gradient that is not finite. The run ends here, so a pass for each is cheap."""
        found = []
        for kind in (kind for kind, count in counts.items() if count):
            self.optimization.forget()
            alone = {other: count if other == kind else 0 for other, count in counts.items()}
            for drawn in window:
                self._backward(drawn, alone)
            if not self.optimization.is_finite():
                found.append(kind)
        return f"the gradient of {' and '.join(found)} alone is not either" if found else "only that of their sum"
