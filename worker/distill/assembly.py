"""From a job description to everything a run needs: models, rows, objective, held-out batches.

Knows the order in which things are loaded and checked. Does not train.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from app.core.errors import BadDataset
from app.core.events import Emit, PhaseProgress, RunStarted, Warned
from app.core.folder_cache import FolderCache
from app.core.job_config import DistillConfig, FileData
from app.core.model_facts import check_models
from worker.distill.data import PromptEncoder, Row, check_context, ground_truth, read_rows, split
from worker.distill.evaluate import HeldOut
from worker.distill.generate import SamplingSettings
from worker.distill.keeper import Keeper, Teller
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
from worker.distill.responses import Writing, complete, greedy
from worker.distill.spans import SpanFinder, make_span_finder
from worker.distill.stopping import stop_if_asked
from worker.distill.teacher_states import keeps_states, rows_with_states, with_states
from worker.distill.types import Batch, ShouldStop, TokenSequence, make_batch
from worker.distill.warmup import FineTuning, own_responses

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
        return _chunk_positions(self.config, self.device, self.teacher.vocabulary_size)

    def batch(self, sequences: Sequence[TokenSequence]) -> Batch:
        return _batch(sequences, self.spans, self.settings.pad_id, self.device)


def _chunk_positions(config: DistillConfig, device: torch.device, vocabulary_size: int) -> int | None:
    if config.training.logits == "whole":
        return None
    return max(1, LOGITS_PER_CHUNK[device.type] // vocabulary_size)


def _batch(sequences: Sequence[TokenSequence], spans: SpanFinder | None, pad_id: int, device: torch.device) -> Batch:
    pairs = spans.pairs(sequences) if spans else None
    return make_batch(sequences, pairs=pairs, pad_id=pad_id, device=device)


@dataclass(frozen=True, kw_only=True)
class _Ground:
    """What is there before any model is built: settings, device, words, and who is told and asked meanwhile."""

    config: DistillConfig
    accelerator: Accelerator
    dtype: torch.dtype
    tokenizer: PreTrainedTokenizerBase
    encoder: PromptEncoder
    keeper: Keeper
    states: FolderCache | None
    emit: Emit
    should_stop: ShouldStop

    @property
    def pad_id(self) -> int:
        return self.tokenizer.pad_token_id or 0

    def chunk_positions(self, vocabulary_size: int) -> int | None:
        return _chunk_positions(self.config, self.accelerator.device, vocabulary_size)

    def fine_tuning(self) -> FineTuning:
        return FineTuning(
            config=self.config,
            accelerator=self.accelerator,
            dtype=self.dtype,
            pad_id=self.pad_id,
            keeper=self.keeper,
            emit=self.emit,
            should_stop=self.should_stop,
        )


def assemble(
    config: DistillConfig,
    *,
    emit: Emit,
    should_stop: ShouldStop,
    keeper: Keeper | None = None,
    states: FolderCache | None = None,
) -> Assembly:
    """Loads and checks everything, and warms up the models if the job says so. Raises InvalidRequest subclasses (bad
    data, models or checkpoints that do not fit), Cancelled and Paused; a warm-up also what training raises. Without
    `states` no states of the teacher are kept.

    What is cheap to find out comes first: files and headers before weights, prompts before teacher responses. What an
    earlier attempt has done already is taken from `keeper`.
    """
    assert isinstance(config.data, FileData), "the service turns a data set into a file before it calls the library"
    keeper = keeper or Keeper(None, config=config, tell=Teller(emit))
    emit(PhaseProgress(phase="loading"))
    check_models(config)
    accelerator = Accelerator()
    tokenizer = load_tokenizer(config.teacher.model)
    tuned = keeper.tuned_teacher()
    teacher_model = load_model(str(tuned or config.teacher.model), device=accelerator.device).requires_grad_(False)
    ground = _Ground(
        config=config,
        accelerator=accelerator,
        dtype=compute_dtype(config.training.precision, accelerator.device),
        tokenizer=tokenizer,
        encoder=PromptEncoder(
            tokenizer, template=config.data.template, eos_ids=end_of_text_ids(teacher_model, tokenizer)
        ),
        keeper=keeper,
        states=states,
        emit=emit,
        should_stop=should_stop,
    )
    rows = read_rows(config.data, ground.encoder)
    keeper.identify(rows, device=accelerator.device, dtype=ground.dtype)
    keeps = _keeps_states(ground, rows, teacher_model)
    own_rows = own_responses(rows, config, ground.encoder)
    stop_if_asked(should_stop, WHILE_LOADING)
    if config.warmup.teacher_sft_steps and tuned is None:
        teacher_model = _tuned(ground, teacher_model, own_rows)
    teacher, student = _models(ground, teacher_model, rows)
    # Made before the student moves, so that how it samples does not hang on where an attempt began.
    sampler = SamplingCopy(student, dtype=ground.dtype)
    rows = _with_responses(ground, rows, teacher, states=ground.states if keeps else None)
    if config.warmup.student_sft_steps and not keeper.is_behind("student_sft"):
        chunk_positions = ground.chunk_positions(student.vocabulary_size)
        ground.fine_tuning().run(student, own_rows, phase="student_sft", chunk_positions=chunk_positions)
        sampler.refresh()
    assembly = _put_together(ground, rows, teacher, student, sampler)
    emit(_started(assembly))
    return assembly


def _tuned(ground: _Ground, model: PreTrainedModel, rows: Sequence[Row]) -> PreTrainedModel:
    """The teacher after its warm-up, in float32. The keeper has it too."""
    model = model.float().requires_grad_(True)
    size = model.config.get_text_config().vocab_size
    lm = SplitModel(model, vocabulary_size=size, split=ground.config.training.logits == "chunked")
    ground.fine_tuning().run(lm, rows, phase="teacher_sft", chunk_positions=ground.chunk_positions(size))
    ground.keeper.keep_teacher(model, ground.tokenizer)
    return model.requires_grad_(False)


def _models(ground: _Ground, teacher_model: PreTrainedModel, rows: Sequence[Row]) -> tuple[SplitModel, SplitModel]:
    """Teacher and student. `rows` have to fit both."""
    config = ground.config
    set_seed(config.training.seed)  # the same from here on, whether the teacher was tuned just now or earlier
    ground.emit(PhaseProgress(phase="loading", done=1, total=2))
    student_model = build_student(config.student, teacher_model, ground.tokenizer)
    teacher_model = teacher_model.to(ground.dtype)  # only now: the student starts from the weights as they are stored
    _check_context(config, rows, teacher_model, student_model)
    models = _split_models(config, teacher_model, student_model)
    ground.emit(PhaseProgress(phase="loading", done=2, total=2))
    stop_if_asked(ground.should_stop, WHILE_LOADING)
    return models


def _keeps_states(ground: _Ground, rows: Sequence[Row], teacher: PreTrainedModel) -> bool:
    """Whether the run trains on kept states. It is decided before any checkpoint, and the keeper remembers it."""
    cache = ground.states
    found = cache and keeps_states(rows, ground.config, teacher=teacher, dtype=ground.dtype, cache=cache)
    keeps = ground.keeper.keeps_states(found is True)
    if isinstance(found, Warned) and not keeps:
        ground.emit(found)
    return keeps


def _with_responses(
    ground: _Ground, rows: Sequence[Row], teacher: SplitModel, *, states: FolderCache | None
) -> list[Row]:
    """The rows with the teacher's responses where they are missing; training rows keep none if only the student is to
    answer them. With `states`, those that are trained on have the teacher's states too."""
    config, data = ground.config, ground.config.data
    writing = Writing(
        teacher=teacher,
        encoder=ground.encoder,
        settings=greedy(max_new_tokens=data.max_response_tokens, encoder=ground.encoder, pad_id=ground.pad_id),
        batch_size=config.training.batch_size,
        generator=torch.Generator().manual_seed(config.training.seed),
        emit=ground.emit,
        should_stop=ground.should_stop,
    )
    if states is None:
        left = rows[: -data.dev_rows] if data.responses == "student" else []
        return [*left, *complete(rows[len(left) :], writing=writing, kept=ground.keeper.responses())]
    chosen, scratch = rows_with_states(rows, config), ground.keeper.states_scratch
    return with_states(rows, chosen, writing=writing, cache=states, scratch=scratch)


def _put_together(
    ground: _Ground, rows: Sequence[Row], teacher: SplitModel, student: SplitModel, sampler: SamplingCopy
) -> Assembly:
    config = ground.config
    train_rows, dev_rows = split(rows, dev_rows=config.data.dev_rows)
    _check_answered(config, train_rows)
    spans = make_span_finder(config.losses, tokenizer=ground.tokenizer, seed=config.training.seed)
    return Assembly(
        config=config,
        accelerator=ground.accelerator,
        dtype=ground.dtype,
        tokenizer=ground.tokenizer,
        encoder=ground.encoder,
        teacher=teacher,
        student=student,
        sampler=sampler,
        objective=Objective(config.losses).to(ground.accelerator.device),
        spans=spans,
        settings=SamplingSettings(
            max_new_tokens=config.sampling.max_new_tokens,
            temperature=config.sampling.temperature,
            top_p=config.sampling.top_p,
            eos_ids=ground.encoder.eos_ids,
            pad_id=ground.pad_id,
        ),
        train_rows=train_rows,
        held_out=_hold_out(dev_rows, teacher, spans=spans, size=config.training.batch_size, pad_id=ground.pad_id),
    )


def _check_answered(config: DistillConfig, train_rows: Sequence[Row]) -> None:
    if config.sampling.kind != "on_policy" and all(row.response_ids is None for row in train_rows):
        raise BadDataset(
            "no training row has a response, so only the student's own samples could be trained on; set sampling.kind "
            "to on_policy, or let the teacher write responses (data.responses: given)",
            "data.responses",
        )


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
    can_split, lean = config.training.logits == "chunked", config.training.decoding == "fast"
    return (
        SplitModel(teacher, vocabulary_size=shared, split=can_split, lean=lean),
        SplitModel(student, vocabulary_size=shared, split=can_split, lean=lean),
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
