"""The closed world as the engine sees it: models, the rows of each regime, and a run put together from cached parts.

Knows regimes and sizes. Does not know which contenders there are, what is measured, nor what becomes of it.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

from app.core.job_config import DistillConfig
from app.core.teacher_states import looks, worth_keeping
from benchmarks.quality.contenders import BUFFER_BATCHES, responses_of
from benchmarks.quality.families import Task
from benchmarks.quality.measuring import Exam, train_and_measure
from benchmarks.quality.models import LONGEST, Scratch, encoder_of, trained
from benchmarks.quality.records import Run
from benchmarks.quality.world import draw_tasks
from worker.distill.assembly import Assembly
from worker.distill.data import Row
from worker.distill.evaluate import HeldOut
from worker.distill.generate import SamplingSettings
from worker.distill.models import SamplingCopy, SplitModel, compute_dtype, load_model, load_tokenizer
from worker.distill.objective import Objective
from worker.distill.responses import Writing, greedy, labelled
from worker.distill.spans import make_span_finder
from worker.distill.types import TokenSequence, make_batch

FEW, MANY = "few_labels", "many_labels"
MAX_NEW_TOKENS = 30
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Sizes:
    """How much a run trains on and is measured on. `labelled` rows have a response in the regime of few labels."""

    batch_size: int = 24
    labelled: int = 300
    prompts: int = 10_000
    dev_rows: int = 48
    dev_every: int = 50
    sweep_rows: int = 1000
    test_rows: int = 400
    sampled_rows: int = 60


class ClosedWorld:
    """What all runs share. Students train in float32, the teacher computes in the device's fastest type."""

    def __init__(self, *, teacher: Scratch, student: Scratch, cache: Path, sizes: Sizes) -> None:
        self.sizes = sizes
        self.folders = {"teacher": trained(teacher, cache=cache), "student": trained(student, cache=cache)}
        self.tokenizer = load_tokenizer(str(self.folders["teacher"]))
        self.encoder = encoder_of(self.tokenizer)
        self._start = load_model(str(self.folders["student"]), device=CPU, dtype=torch.float32)
        model = load_model(str(self.folders["teacher"]), device=CPU, dtype=compute_dtype("auto", CPU))
        self.teacher = self._split(model.requires_grad_(False))
        self.settings = SamplingSettings(
            max_new_tokens=MAX_NEW_TOKENS,
            temperature=1.0,
            top_p=1.0,
            eos_ids=self.encoder.eos_ids,
            pad_id=self.tokenizer.pad_token_id,
        )

    def student(self) -> SplitModel:
        """The starting student, a copy of its own for every run."""
        return self._split(copy.deepcopy(self._start))

    def execute(self, run: Run) -> Mapping[str, Any]:
        """Trains a run's student and measures it: on dev rows in a sweep, on test rows otherwise."""
        set_seed(run.seed)
        assembly = self.assembly(self.config(run), run.regime)
        measured = train_and_measure(assembly, self._dev_exam if run.budget == "sweep" else self.test_exam)
        taught = max(looks(assembly.config), measured["ground_truth_batches"] * assembly.config.training.batch_size)
        return {
            **measured,
            "seconds": measured["seconds"] + self._reading_seconds(assembly.config, run.regime),
            "labelling_seconds": self._labelling_seconds(assembly, run.regime, taught),
        }

    def config(self, run: Run) -> DistillConfig:
        """The job as a user would describe it. Sampling recipes have the students write for unlabelled prompts."""
        sections, sizes = run.contender.sections, self.sizes
        described = DistillConfig.model_validate(
            {
                **sections,
                "teacher": {"model": str(self.folders["teacher"])},
                "student": {"kind": "checkpoint", "model": str(self.folders["student"])},
                "data": {
                    "kind": "file",
                    "path": f"{run.regime}.jsonl",
                    "dev_rows": sizes.dev_rows,
                    **sections.get("data", {}),
                    "responses": responses_of(run.contender),
                },
                "training": {
                    "max_steps": run.steps,
                    "batch_size": sizes.batch_size,
                    "learning_rate": run.learning_rate,
                    "seed": run.seed,
                    "precision": "float32",
                },
                "evaluation": {"every_steps": sizes.dev_every, "select": "last", "rouge_rows": 0, "samples": 0},
            }
        )
        sampling = described.sampling.model_dump() | {"max_new_tokens": MAX_NEW_TOKENS}
        if "buffer_size" in sampling:
            sampling["buffer_size"] = BUFFER_BATCHES * sizes.batch_size
        return DistillConfig.model_validate(described.model_dump() | {"sampling": sampling})

    def assembly(self, config: DistillConfig, regime: str) -> Assembly:
        """What `assemble` gives for `config`, without reading models and rows again for every run."""
        student = self.student()
        spans = make_span_finder(config.losses, tokenizer=self.tokenizer, seed=config.training.seed)
        dev = self.rows("dev", self.sizes.dev_rows)
        sequences = [TokenSequence(row.prompt_ids, row.response_ids or (), True) for row in dev]
        pairs = spans.pairs(sequences) if spans else None
        batch = make_batch(sequences, pairs=pairs, pad_id=self.settings.pad_id)
        return Assembly(
            config=config,
            accelerator=Accelerator(),
            dtype=torch.float32,
            tokenizer=self.tokenizer,
            encoder=self.encoder,
            teacher=self.teacher,
            student=student,
            sampler=SamplingCopy(student, dtype=torch.float32),
            objective=Objective(config.losses),
            spans=spans,
            settings=replace(self.settings, temperature=config.sampling.temperature, top_p=config.sampling.top_p),
            train_rows=self._rows_of_run(config, regime),
            held_out=HeldOut.prepare(dev, [batch], teacher=self.teacher),
        )

    # --- rows -----------------------------------------------------------------------------------------------

    def train_rows(self, regime: str, responses: str) -> Sequence[Row]:
        """The regime's rows as `data.responses` has them: with `given` and `teacher` no row lacks a response."""
        known = self._known(regime, responses)
        if known == len(self._labelled):
            return self._labelled
        rest = [replace(row, response_ids=None) for row in self._labelled] if responses == "student" else self._written
        return [*self._labelled[:known], *rest[known:]]

    def _known(self, regime: str, responses: str) -> int:
        """How many rows, the first ones, have the data's own response."""
        if responses == "teacher":
            return 0
        return self.sizes.labelled if regime == FEW else len(self._labelled)

    def _rows_of_run(self, config: DistillConfig, regime: str) -> Sequence[Row]:
        """With the teacher's states where a job keeps them: of what it wrote they are there, the rest is read."""
        rows = self.train_rows(regime, config.data.responses)
        known = self._known(regime, config.data.responses)
        if not worth_keeping(config, rows_to_read=known):
            return [replace(row, teacher_TD=None) for row in rows]
        return [*self._reading[0][:known], *rows[known:]] if known else rows

    def rows(self, split: Any, count: int) -> list[Row]:
        """Labelled rows of a split."""
        return [self._row(i, task) for i, task in enumerate(draw_tasks(split, count, seed=0), start=1)]

    @cached_property
    def _labelled(self) -> list[Row]:
        return self.rows("train", self.sizes.labelled + self.sizes.prompts)

    def _reading_seconds(self, config: DistillConfig, regime: str) -> float:
        """Processor time in which the teacher read the rows that a run keeps its states of, before the first step."""
        known = self._known(regime, config.data.responses)
        if not known or not worth_keeping(config, rows_to_read=known):
            return 0.0
        return self._reading[1] * known / len(self._labelled)

    def _labelling_seconds(self, assembly: Assembly, regime: str, taught: float) -> float:
        """Processor time in which the teacher wrote what a run was taught or chose from: of the `taught` rows (each
        counted once) as large a share as of all rows with a response."""
        answered = sum(row.response_ids is not None for row in assembly.train_rows)
        written = answered - self._known(regime, assembly.config.data.responses)
        if not written:
            return 0.0
        seconds_per_row = self._writing[1] / len(self._written)
        return min(taught, answered) * written / answered * seconds_per_row

    @property
    def _written(self) -> list[Row]:
        """The same prompts with the teacher's greedy responses, and its states of them."""
        return self._writing[0]

    @cached_property
    def _writing(self) -> tuple[list[Row], float]:
        """The teacher's responses with its states, and the processor time that it took to write them."""
        start = time.process_time()
        rows = labelled(self._labelled, self._passes.write(self._labelled), self.encoder)
        return rows, time.process_time() - start

    @cached_property
    def _reading(self) -> tuple[list[Row], float]:
        """The labelled rows with the teacher's states, and the processor time that it took to read them."""
        start = time.process_time()
        rows = labelled(self._labelled, self._passes.read(self._labelled), self.encoder)
        return rows, time.process_time() - start

    @property
    def _passes(self) -> Writing:
        return Writing(
            teacher=self.teacher,
            encoder=self.encoder,
            settings=greedy(max_new_tokens=MAX_NEW_TOKENS, encoder=self.encoder, pad_id=self.settings.pad_id),
            batch_size=500,
            generator=torch.Generator().manual_seed(0),
            emit=lambda event: None,
            should_stop=lambda: None,
        )

    def _row(self, number: int, task: Task) -> Row:
        return Row(
            number=number,
            prompt=task.prompt,
            prompt_ids=self.encoder.prompt([{"role": "user", "content": task.prompt}]),
            reference=task.response,
            response_ids=self.encoder.response(task.response, max_tokens=LONGEST),
        )

    # --- exams ----------------------------------------------------------------------------------------------

    @cached_property
    def test_exam(self) -> Exam:
        return self._exam("test", self.sizes.test_rows, self.sizes.sampled_rows)

    @cached_property
    def _dev_exam(self) -> Exam:
        return self._exam("dev", self.sizes.sweep_rows, 0)

    def _exam(self, split: str, rows: int, sampled_rows: int) -> Exam:
        return Exam(self.teacher, self.encoder, self.settings, self.rows(split, rows), sampled_rows, batch_size=200)

    def _split(self, model: Any) -> SplitModel:
        return SplitModel(model, vocabulary_size=len(self.tokenizer))
