"""From a job description to everything a run needs: models, rows, objective, held-out batches.

Knows the order in which things are loaded and checked. Does not train.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from app.core.events import Emit, PhaseProgress, RunStarted
from app.core.job_config import DistillConfig, FileData
from app.core.model_facts import check_models
from worker.distill.data import PromptEncoder, Row, check_context, read_rows, split
from worker.distill.evaluate import HeldOut
from worker.distill.generate import SamplingSettings
from worker.distill.models import (
    SamplingCopy,
    SplitModel,
    build_student,
    compute_dtype,
    end_of_text_ids,
    load_model,
    load_tokenizer,
)
from worker.distill.objective import Objective
from worker.distill.responses import complete, greedy
from worker.distill.spans import SpanFinder, make_span_finder
from worker.distill.stopping import stop_if_asked
from worker.distill.types import Batch, ShouldStop, TokenSequence, make_batch

# Positions x vocabulary alive at once in the loss. A CPU is fastest while one such tensor stays in its last-level cache
# (24 MiB in float32; measured in docs/log.md), a GPU when there is enough work for one launch (256 MiB).
LOGITS_PER_CHUNK = {"cpu": 6 * 2**20, "cuda": 2**26, "mps": 2**25}

WHILE_LOADING = "while the run was being loaded"


@dataclass(frozen=True)
class Assembly:
    """What a run works with. The student is trained in float32; `sampler` is its copy in the compute type."""

    config: DistillConfig
    accelerator: Accelerator
    dtype: torch.dtype
    tokenizer: PreTrainedTokenizerBase
    encoder: PromptEncoder
    teacher: SplitModel
    student: SplitModel
    sampler: SamplingCopy
    objective: Objective
    spans: SpanFinder | None
    settings: SamplingSettings
    train_rows: Sequence[Row]
    held_out: HeldOut

    @property
    def device(self) -> torch.device:
        return self.accelerator.device

    @property
    def chunk_positions(self) -> int | None:
        if self.config.training.logits == "whole":
            return None
        return max(1, LOGITS_PER_CHUNK[self.device.type] // self.teacher.vocabulary_size)

    def batch(self, sequences: Sequence[TokenSequence]) -> Batch:
        return _batch(sequences, self.spans, self.settings.pad_id, self.device)


def _batch(sequences: Sequence[TokenSequence], spans: SpanFinder | None, pad_id: int, device: torch.device) -> Batch:
    pairs = spans.pairs(sequences) if spans else None
    return make_batch(sequences, pairs=pairs, pad_id=pad_id, device=device)


def ground_truth(rows: Sequence[Row]) -> list[TokenSequence]:
    """The rows' own responses as training sequences. Every row has one by now (the teacher wrote what was missing)."""
    return [TokenSequence(row.prompt_ids, row.response_ids or (), is_ground_truth=True) for row in rows]


def assemble(config: DistillConfig, *, emit: Emit, should_stop: ShouldStop) -> Assembly:
    """Loads and checks everything. Raises InvalidRequest subclasses (bad data, models that do not fit), Cancelled and
    Paused.

    What is cheap to find out comes first: files and headers before weights, prompts before teacher responses.
    """
    data = config.data
    assert isinstance(data, FileData), "the service turns a data set into a file before it calls the library"
    emit(PhaseProgress(phase="loading"))
    check_models(config)
    accelerator = Accelerator()
    dtype = compute_dtype(config.training.precision, accelerator.device)
    tokenizer = load_tokenizer(config.teacher.model)
    teacher_model = load_model(config.teacher.model, device=accelerator.device).requires_grad_(False)
    encoder = PromptEncoder(tokenizer, template=data.template, eos_ids=end_of_text_ids(teacher_model, tokenizer))
    rows = read_rows(data, encoder)
    stop_if_asked(should_stop, WHILE_LOADING)
    student_model = build_student(config.student, teacher_model, tokenizer)
    teacher_model = teacher_model.to(dtype)  # only now: the student starts from the weights as they are stored
    _check_context(config, rows, teacher_model, student_model)
    teacher, student = _split_models(config, teacher_model, student_model)
    stop_if_asked(should_stop, WHILE_LOADING)
    pad_id = tokenizer.pad_token_id or 0
    rows = complete(
        rows,
        teacher=teacher,
        encoder=encoder,
        settings=greedy(max_new_tokens=data.max_response_tokens, encoder=encoder, pad_id=pad_id),
        batch_size=config.training.batch_size,
        generator=torch.Generator().manual_seed(config.training.seed),
        emit=emit,
        should_stop=should_stop,
    )
    train_rows, dev_rows = split(rows, dev_rows=data.dev_rows)
    spans = make_span_finder(config.losses, tokenizer=tokenizer, seed=config.training.seed)
    assembly = Assembly(
        config=config,
        accelerator=accelerator,
        dtype=dtype,
        tokenizer=tokenizer,
        encoder=encoder,
        teacher=teacher,
        student=student,
        sampler=SamplingCopy(student, dtype=dtype),
        objective=Objective(config.losses).to(accelerator.device),
        spans=spans,
        settings=SamplingSettings(
            max_new_tokens=config.sampling.max_new_tokens,
            temperature=config.sampling.temperature,
            top_p=config.sampling.top_p,
            eos_ids=encoder.eos_ids,
            pad_id=pad_id,
        ),
        train_rows=train_rows,
        held_out=_hold_out(dev_rows, teacher, spans=spans, size=config.training.batch_size, pad_id=pad_id),
    )
    emit(_started(assembly))
    return assembly


def _check_context(
    config: DistillConfig, rows: Sequence[Row], teacher: PreTrainedModel, student: PreTrainedModel
) -> None:
    contexts = [model.config.get_text_config().max_position_embeddings for model in (teacher, student)]
    check_context(
        rows,
        context=min(contexts),
        max_new_tokens=config.sampling.max_new_tokens,
        max_response_tokens=config.data.max_response_tokens,
    )


def _split_models(
    config: DistillConfig, teacher: PreTrainedModel, student: PreTrainedModel
) -> tuple[SplitModel, SplitModel]:
    """Both cut to the ids they share: vocabularies may differ by padding at the end."""
    shared = min(model.config.get_text_config().vocab_size for model in (teacher, student))
    can_split = config.training.logits == "chunked"
    return (
        SplitModel(teacher, vocabulary_size=shared, split=can_split),
        SplitModel(student, vocabulary_size=shared, split=can_split),
    )


def _hold_out(rows: Sequence[Row], teacher: SplitModel, *, spans: SpanFinder | None, size: int, pad_id: int) -> HeldOut:
    parts = [rows[i : i + size] for i in range(0, len(rows), size)]
    batches = [_batch(ground_truth(part), spans, pad_id, teacher.device) for part in parts]
    return HeldOut.prepare(rows, batches, teacher=teacher)


def _started(run: Assembly) -> RunStarted:
    return RunStarted(
        teacher_parameters=run.teacher.model.num_parameters(),
        student_parameters=run.student.model.num_parameters(),
        vocabulary_size=run.teacher.vocabulary_size,
        train_rows=len(run.train_rows),
        dev_rows=len(run.held_out.rows),
        max_steps=run.config.training.max_steps,
        device=str(run.device),
        precision=str(run.dtype).removeprefix("torch."),
    )
