"""Fine-tuning before distillation: the teacher, then the student, by cross-entropy on the data's own responses.

Knows rows, one model at a time and its optimizer. Does not know the other model, or what the run distills with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NoReturn

import torch
from accelerate import Accelerator

from app.core.errors import BadDataset, NonFiniteLoss
from app.core.events import Emit, PhaseProgress
from app.core.job_config import DistillConfig, WarmupConfig
from app.core.loss_config import SftLoss
from app.core.prompt_encoder import PromptEncoder
from worker.distill.data import Row, RowOrder, ground_truth, split
from worker.distill.evaluate import response_states
from worker.distill.keeper import Keeper
from worker.distill.models import SplitModel
from worker.distill.objective import Objective
from worker.distill.optimization import Optimization
from worker.distill.stopping import stop
from worker.distill.types import ShouldStop, Stop, make_batch

WarmupPhase = Literal["teacher_sft", "student_sft"]
# Added to training.seed: teacher, student and the training itself each see the rows in an order of their own.
_SEEDS: dict[WarmupPhase, int] = {"teacher_sft": 101, "student_sft": 102}


def own_responses(rows: Sequence[Row], config: DistillConfig, encoder: PromptEncoder) -> list[Row]:
    """The training rows to which the data has a response, with that response, also where the teacher's is trained on
    later. None when no phase of the warm-up needs them; BadDataset when one does and there are none."""
    phase = _first_phase(config.warmup)
    if phase is None:
        return []
    train_rows, _ = split(rows, dev_rows=config.data.dev_rows)
    limit = config.data.max_response_tokens
    own = [
        replace(row, response_ids=encoder.response(row.reference, max_tokens=limit))
        for row in train_rows
        if row.reference is not None
    ]
    if not own:
        raise BadDataset(
            "no training row has a response of its own to fine-tune on; add responses, or set it to 0",
            f"warmup.{phase}_steps",
        )
    return own


def _first_phase(config: WarmupConfig) -> WarmupPhase | None:
    if config.teacher_sft_steps:
        return "teacher_sft"
    return "student_sft" if config.student_sft_steps else None


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """What both phases share. Either may be interrupted, and goes on from its checkpoint to the last bit."""

    config: DistillConfig
    accelerator: Accelerator
    dtype: torch.dtype
    pad_id: int
    keeper: Keeper
    emit: Emit
    should_stop: ShouldStop

    def run(self, lm: SplitModel, rows: Sequence[Row], *, phase: WarmupPhase, chunk_positions: int | None) -> None:
        """Trains `lm`, whose weights are float32, for the steps that the phase has left.

        Raises Cancelled, Paused, DiskFull and NonFiniteLoss.
        """
        _Phase(self, lm, rows, phase=phase, chunk_positions=chunk_positions).run()


class _Phase:
    """One model on its way through one phase."""

    def __init__(
        self,
        shared: FineTuning,
        lm: SplitModel,
        rows: Sequence[Row],
        *,
        phase: WarmupPhase,
        chunk_positions: int | None,
    ) -> None:
        config = shared.config
        self._shared, self._lm, self._phase, self._chunk_positions = shared, lm, phase, chunk_positions
        self._steps = config.warmup.teacher_sft_steps if phase == "teacher_sft" else config.warmup.student_sft_steps
        self._optimization = Optimization(
            [
                {
                    "params": list(lm.model.requires_grad_(True).parameters()),
                    "lr": config.warmup.learning_rate or config.training.learning_rate,
                }
            ],
            training=config.training,
            steps=self._steps,
            accelerator=shared.accelerator,
        )
        alike = config.training.batch_size if config.training.bucket_by_length else None
        self._rows = RowOrder(rows, seed=config.training.seed + _SEEDS[phase], alike=alike)
        self._objective = Objective([SftLoss()])

    def run(self) -> None:
        every = self._shared.config.training.checkpoint_every
        done = self._restored()
        self._tell(done)
        for step in range(done + 1, self._steps + 1):
            if wish := self._shared.should_stop():
                self._stop(wish, step - 1)
            try:
                self._add_gradients()
                self._optimization.step()
            except NonFiniteLoss as error:
                words = f"{self._phase} step {step}: {error.message}{self._shared.keeper.kept()}"
                raise NonFiniteLoss(words, "warmup.learning_rate") from error
            self._tell(step)
            if every and step % every == 0 and step < self._steps:
                self._keep(step)

    def _restored(self) -> int:
        found = self._shared.keeper.restore(self._phase, self._lm.model)
        if found is None:
            return 0
        step, state = found
        self._optimization.load(state["optimization"])
        self._rows.load(state["rows"])
        return step

    def _add_gradients(self) -> None:
        config, device, dtype = self._shared.config.training, self._shared.accelerator.device, self._shared.dtype
        window = [
            make_batch(ground_truth(self._rows.take(config.batch_size)), pad_id=self._shared.pad_id, device=device)
            for _ in range(config.gradient_accumulation)
        ]
        counts = self._objective.counts(window)
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            for batch in window:
                self._objective.backward_from_hidden(
                    student_hidden_ND=response_states(self._lm, batch),
                    student_head=self._lm.head,
                    teacher_hidden_ND=None,
                    teacher_head=None,
                    batch=batch,
                    counts=counts,
                    vocabulary_size=self._lm.vocabulary_size,
                    chunk_positions=self._chunk_positions,
                )

    def _stop(self, wish: Stop, step: int) -> NoReturn:
        where = f"after step {step} of {self._steps} of {self._phase}"
        if wish == "pause":
            self._keep(step)
            where += self._shared.keeper.kept()
        stop(wish, where)

    def _keep(self, step: int) -> None:
        state = {"optimization": self._optimization.state(), "rows": self._rows.state()}
        self._shared.keeper.save(self._phase, step, self._lm.model, state)

    def _tell(self, step: int) -> None:
        self._shared.emit(PhaseProgress(phase=self._phase, done=step, total=self._steps))
