"""The training loop: draw a window of batches, add up its loss and gradients, step, report.

Knows the order of things. Does not know any loss by name, nor where events and students go.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate.utils import set_seed
from torch import Tensor
from transformers import get_scheduler

from app.core.errors import NonFiniteLoss
from app.core.events import Correction, Emit, Evaluated, PhaseProgress, SampleDrawn, StepDone, StudentExported, Warned
from app.core.job_config import DistillConfig
from worker.distill.assembly import Assembly, assemble, ground_truth
from worker.distill.checkup import Examiner
from worker.distill.data import RowOrder
from worker.distill.evaluate import response_states
from worker.distill.export import export_student
from worker.distill.rollout import draw_fresh
from worker.distill.schedule import BatchSchedule, Source
from worker.distill.stopping import stop_if_asked
from worker.distill.timing import Clock
from worker.distill.types import Batch, ShouldStop

SPEED_MEMORY = 0.8  # share of the old estimate in the running seconds per step


@dataclass(frozen=True)
class DistilledStudent:
    """What a finished run leaves: a Hugging Face folder, and metrics `before/...` and `after/...` training."""

    folder: Path
    parameters: int
    weights_sha256: str
    metrics: dict[str, float]


@dataclass(frozen=True)
class Drawn:
    """One micro-batch with what is known of it: where it is from, teacher states if they came for free."""

    batch: Batch
    source: Source
    teacher_hidden_ND: Tensor | None
    metrics: dict[str, float]
    correction: Correction | None = None


def distill(
    config: DistillConfig, *, out: Path, emit: Emit, should_stop: ShouldStop, checkpoints: Path | None = None
) -> DistilledStudent:
    """Trains the student that `config` describes and writes it to `out / "student"`.

    `should_stop` is asked at every step boundary. Raises Cancelled, Paused, InvalidRequest subclasses for data and
    models that do not fit, NonFiniteLoss and NothingToLearn. `config.data` must be a file.
    """
    set_seed(config.training.seed)
    run = assemble(config, emit=emit, should_stop=should_stop)
    trainer = Trainer(run, emit=emit, should_stop=should_stop)
    metrics = trainer.train()
    emit(PhaseProgress(phase="exporting"))
    model = run.student.model
    fingerprint = export_student(
        model,
        run.tokenizer,
        out / "student",
        card={"config": config.model_dump(mode="json"), "metrics": metrics, "parameters": model.num_parameters()},
    )
    student = DistilledStudent(out / "student", model.num_parameters(), fingerprint, metrics)
    emit(StudentExported(folder=str(student.folder), parameters=student.parameters, weights_sha256=fingerprint))
    return student


class Trainer:
    """One run's state: optimizer, schedule, order of rows, random numbers."""

    def __init__(self, run: Assembly, *, emit: Emit, should_stop: ShouldStop) -> None:
        self._run = run
        self._emit = emit
        self._should_stop = should_stop
        training = run.config.training
        groups = [
            {"params": list(run.student.model.parameters()), "lr": training.learning_rate},
            *run.objective.parameter_groups(training.learning_rate),
        ]
        self._optimizer = torch.optim.AdamW(groups, weight_decay=training.weight_decay, fused=run.device.type != "mps")
        self._lr_schedule = get_scheduler(
            "constant_with_warmup" if training.schedule == "constant" else training.schedule,
            self._optimizer,
            num_warmup_steps=int(training.warmup_fraction * training.max_steps),
            num_training_steps=training.max_steps,
        )
        self._rows = RowOrder(run.train_rows, seed=training.seed)
        self._schedule = BatchSchedule(run.config.sampling, max_steps=training.max_steps, seed=training.seed + 1)
        self._generator = torch.Generator().manual_seed(training.seed + 2)
        self._clock = Clock()
        self._seconds_per_step = 0.0
        self._warned: set[str] = set()
        self._num_fresh = 0

    def train(self) -> dict[str, float]:
        """All steps. Returns the evaluation before the first (`before/...`) and after the last step (`after/...`)."""
        training, every = self._run.config.training, self._run.config.evaluation.every_steps
        metrics = {f"before/{name}": value for name, value in self._evaluate(0).items()}
        self._emit(PhaseProgress(phase="training", total=training.max_steps))
        for step in range(1, training.max_steps + 1):
            stop_if_asked(self._should_stop, f"after step {step - 1} of {training.max_steps}")
            self._step(step)
            if step % every == 0 and step < training.max_steps:
                self._evaluate(step)
        self._warn_if_scrg_never_ran()
        return metrics | {f"after/{name}": value for name, value in self._evaluate(training.max_steps).items()}

    # --- one step -------------------------------------------------------------------------------------------

    def _step(self, step: int) -> None:
        start = time.perf_counter()
        training = self._run.config.training
        window = [self._draw(step) for _ in range(training.gradient_accumulation)]
        counts = self._run.objective.counts([drawn.batch for drawn in window])
        metrics: dict[str, float] = {}
        try:
            for drawn in window:
                for name, value in self._backward(drawn, counts).items():
                    metrics[name] = metrics.get(name, 0.0) + value
        except NonFiniteLoss as error:
            raise NonFiniteLoss(f"step {step}: {error.message}", error.field) from error
        metrics["train/grad_norm"] = self._update(step)
        for drawn in window:
            for name, value in drawn.metrics.items():
                metrics[name] = metrics.get(name, 0.0) + value / sum(name in other.metrics for other in window)
        self._report(step, window, metrics, time.perf_counter() - start)

    def _draw(self, step: int) -> Drawn:
        run, size = self._run, self._run.config.training.batch_size
        source = self._schedule.choose(step - 1)
        if source == "fresh":
            self._num_fresh += 1
            fresh = draw_fresh(
                self._rows.take(size),
                teacher=run.teacher,
                student=run.sampler.lm,
                config=run.config.scrg,
                settings=run.settings,
                generator=self._generator,
                tokenizer=run.tokenizer,
                clock=self._clock,
            )
            self._schedule.store(fresh.to_store)
            with self._clock("data"):
                batch = run.batch(fresh.sequences)
            return Drawn(batch, source, fresh.teacher_hidden_ND, fresh.metrics, fresh.correction(step))
        with self._clock("data"):
            sequences = self._schedule.buffer.draw(size) if source == "replay" else ground_truth(self._rows.take(size))
            batch = run.batch(sequences)
        return Drawn(batch, source, None, {})

    def _backward(self, drawn: Drawn, counts: dict[str, int]) -> dict[str, float]:
        run = self._run
        teacher_ND = drawn.teacher_hidden_ND
        if teacher_ND is None and run.objective.needs_teacher:
            with self._clock("teacher"), torch.no_grad():
                teacher_ND = response_states(run.teacher, drawn.batch)
        with torch.autocast(run.device.type, run.dtype, enabled=run.dtype != torch.float32):
            with self._clock("student"):
                student_ND = response_states(run.student, drawn.batch)
            with self._clock("loss"):
                return run.objective.backward_from_hidden(
                    student_hidden_ND=student_ND,
                    student_head=run.student.head,
                    teacher_hidden_ND=teacher_ND,
                    teacher_head=run.teacher.head,
                    batch=drawn.batch,
                    counts=counts,
                    vocabulary_size=run.teacher.vocabulary_size,
                    chunk_positions=run.chunk_positions,
                )

    def _update(self, step: int) -> float:
        """Clips, steps, and returns the gradient norm. A gradient that is not finite never reaches the weights."""
        run = self._run
        with self._clock("student"):
            parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
            norm = float(run.accelerator.clip_grad_norm_(parameters, run.config.training.max_grad_norm))
            if not math.isfinite(norm):
                raise NonFiniteLoss(
                    f"step {step}: the gradient is not finite; lower training.learning_rate or use precision float32"
                )
            self._optimizer.step()
            self._lr_schedule.step()
            self._optimizer.zero_grad(set_to_none=True)
            run.sampler.refresh()
        return norm

    # --- what others see ------------------------------------------------------------------------------------

    def _report(self, step: int, window: list[Drawn], metrics: dict[str, float], seconds: float) -> None:
        memory = SPEED_MEMORY if self._seconds_per_step else 0.0
        self._seconds_per_step = memory * self._seconds_per_step + (1 - memory) * seconds
        for warning in self._run.objective.warnings(metrics, step=step):
            self._warn(warning)
        training = self._run.config.training
        if step % training.log_every and step != training.max_steps:
            return
        tokens = sum(drawn.batch.num_positions for drawn in window)
        metrics |= {f"time/{name}_s": value for name, value in self._clock.take().items()}
        metrics |= {
            "train/learning_rate": self._optimizer.param_groups[0]["lr"],
            "train/tokens_per_s": tokens / seconds,
            "sampling/phi": self._schedule.phi,
            "sampling/buffer": float(len(self._schedule.buffer)),
        }
        self._emit(
            StepDone(
                step=step,
                max_steps=training.max_steps,
                source=window[-1].source,
                tokens=tokens,
                tokens_per_s=tokens / seconds,
                eta_s=(training.max_steps - step) * self._seconds_per_step,
                metrics=metrics,
            )
        )
        for drawn in window:
            if drawn.correction:
                self._emit(drawn.correction)

    def _evaluate(self, step: int) -> dict[str, float]:
        run = self._run
        self._emit(PhaseProgress(phase="evaluating"))
        found = Examiner.of(run).examine(run.sampler.lm)
        self._schedule.observe_dev_loss(found.metrics["eval/loss"])
        self._emit(Evaluated(step=step, metrics=found.metrics))
        for answer in found.answers[: run.config.evaluation.samples]:
            self._emit(
                SampleDrawn(step=step, prompt=answer.row.prompt, text=answer.text, reference=answer.row.reference)
            )
        return found.metrics

    def _warn(self, warning: Warned) -> None:
        """Once per code: a state that lasts is not news at every step."""
        if warning.code not in self._warned:
            self._warned.add(warning.code)
            self._emit(warning)

    def _warn_if_scrg_never_ran(self) -> None:
        config = self._run.config
        if config.scrg.rounds and not self._num_fresh:
            self._warn(
                Warned(
                    code="scrg_never_ran",
                    message="no batch was sampled from the student, so SCRG corrected nothing: phi stayed "
                    f"{self._schedule.phi:g}; raise sampling.phi_start, or set scrg.rounds to 0 if that is meant",
                )
            )
