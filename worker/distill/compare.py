"""Asking several models at the same time, a token each in turn, with their speed: what the side-by-side page shows.

Knows how to keep a few models loaded. Does not know the queue, the database or where answers are written.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from accelerate import Accelerator
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from app.core.errors import ContextTooShort, ModelUnreadable, NotFound
from worker.distill.checkpoint import sha256_of
from worker.distill.data import PromptEncoder
from worker.distill.decoder import Decoder
from worker.distill.export import weights_sha256
from worker.distill.generate import SamplingSettings, next_tokens, pad_left
from worker.distill.models import (
    CheckpointedStudent,
    ModelSource,
    SplitModel,
    TrainedModel,
    build_student,
    compute_dtype,
    end_of_text_ids,
    load_model,
    load_tokenizer,
)
from worker.distill.training_state import WEIGHTS, read_weights, set_tensors

Template = Literal["chat", "alpaca", "plain"]


@dataclass(frozen=True)
class LoadedModel:
    lm: SplitModel
    tokenizer: PreTrainedTokenizerBase
    parameters: int
    weights_sha256: str
    context: int


class ModelCache:
    """The `max_models` models used last, in the device's fastest type. Not safe for several threads at once."""

    def __init__(self, max_models: int = 4) -> None:
        self._max_models = max_models
        self._loaded: OrderedDict[ModelSource, LoadedModel] = OrderedDict()
        self._device: torch.device = Accelerator().device

    def get(self, source: ModelSource) -> LoadedModel:
        """Raises ModelNotFound, ModelUnreadable, or NotFound for a checkpoint that was removed meanwhile."""
        if source not in self._loaded:
            while len(self._loaded) >= self._max_models:
                self._loaded.popitem(last=False)  # before loading, so that both never lie in memory
            self._loaded[source] = self._load(source)
        self._loaded.move_to_end(source)
        return self._loaded[source]

    def _load(self, source: ModelSource) -> LoadedModel:
        model, tokenizer = self._weights(source)
        fingerprint = weights_sha256(model)  # of the stored type, before any cast
        model = model.to(compute_dtype("auto", self._device)).requires_grad_(False)
        config = model.config.get_text_config()
        return LoadedModel(
            lm=SplitModel(model, vocabulary_size=min(config.vocab_size, len(tokenizer))),
            tokenizer=tokenizer,
            parameters=model.num_parameters(),
            weights_sha256=fingerprint,
            context=config.max_position_embeddings,
        )

    def _weights(self, source: ModelSource) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        if isinstance(source, TrainedModel):
            return load_model(source.model, device=self._device), load_tokenizer(source.model)
        teacher, tokenizer = load_model(source.teacher, device=self._device), load_tokenizer(source.teacher)
        student = build_student(source.student, teacher, tokenizer)
        if isinstance(source, CheckpointedStudent):
            _set_weights(student, source)
        return student, tokenizer


def _set_weights(student: PreTrainedModel, source: CheckpointedStudent) -> None:
    """The weights of the checkpoint's file, if it still is what was written."""
    folder = Path(source.folder)
    try:
        if sha256_of(folder / WEIGHTS) != source.sha256:
            raise ModelUnreadable(f"{folder.name}: the weights are not what was written; choose another checkpoint")
        tensors = read_weights(folder)
    except FileNotFoundError as error:
        raise NotFound(
            f"the checkpoint {folder.name} was removed while it was about to be read: its job keeps its newest and its "
            "best ones; choose one that is there, or let a job keep more with training.keep_last"
        ) from error
    set_tensors(student, tensors)


@dataclass(frozen=True)
class AnswerText:
    """An answer as far as it is written. `seconds` and `first_token_s` are the model's own computing time: neither
    loading nor the other models' turns count. `finish` is None while it is being written."""

    text: str
    token_ids: tuple[int, ...]
    seconds: float
    first_token_s: float | None
    finish: Literal["stop", "length", "cancelled"] | None
    parameters: int
    weights_sha256: str
    template: Template

    @property
    def tokens_per_s(self) -> float:
        return len(self.token_ids) / self.seconds if self.seconds > 0 else 0.0


class AnswerStream:
    """One model's answer to a conversation, a token at a time. The same seed and settings give the same answer, however
    many models write beside it; temperature 0 is greedy.

    `template` None takes the tokenizer's chat template, or the plain text where it has none. Raises ContextTooShort if
    prompt and answer do not fit the model, NoChatTemplate for a chat template that is not there.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        messages: Sequence[Mapping[str, str]],
        template: Template | None,
        max_new_tokens: int,
        temperature: float,
        top_p: float,
        seed: int,
    ) -> None:
        self._loaded = loaded
        self.encoder, self._template = encoder_of(loaded, template)
        self.prompt_ids = self.encoder.prompt([dict(message) for message in messages])
        _check_context(loaded, len(self.prompt_ids), max_new_tokens)
        self._settings = SamplingSettings(
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            eos_ids=self.encoder.eos_ids,
            pad_id=loaded.tokenizer.pad_token_id or 0,
        )
        self._generator = torch.Generator().manual_seed(seed)
        self._decoder = Decoder(loaded.lm, rows=1)
        self._token_ids: list[int] = []
        self._seconds = 0.0
        self._first_token_s: float | None = None
        self._finish: Literal["stop", "length", "cancelled"] | None = None

    @torch.no_grad()
    def advance(self) -> bool:
        """Writes one token; False once the answer has ended."""
        start = time.perf_counter()
        settings, lm = self._settings, self._loaded.lm
        fed = [self._token_ids[-1]] if self._token_ids else self.prompt_ids
        hidden_BTD = self._decoder.append(*pad_left([fed], pad_id=settings.pad_id, device=lm.device))
        uniform_B = torch.rand(1, generator=self._generator).to(lm.device)
        token_B = next_tokens(lm.head(hidden_BTD[:, -1]), settings=settings, uniform_A=uniform_B)
        self._token_ids.append(int(token_B))  # waits for the device, so the clock below is right
        self._seconds += time.perf_counter() - start
        if self._first_token_s is None:
            self._first_token_s = self._seconds
        if self._token_ids[-1] in settings.eos_ids:
            self._finish = "stop"
        elif len(self._token_ids) >= settings.max_new_tokens:
            self._finish = "length"
        return self._finish is None

    def stop(self) -> None:
        """Ends the answer where it is."""
        self._finish = self._finish or "cancelled"

    def so_far(self) -> AnswerText:
        """While it is written, the bytes of a character that is not complete yet are left out. An answer that has ended
        is all that its tokens say, however it ended."""
        text = self.encoder.text(self._token_ids)
        return AnswerText(
            text=text if self._finish else text.rstrip("\ufffd"),
            token_ids=tuple(self._token_ids),
            seconds=self._seconds,
            first_token_s=self._first_token_s,
            finish=self._finish,
            parameters=self._loaded.parameters,
            weights_sha256=self._loaded.weights_sha256,
            template=self._template,
        )


def write_together(
    streams: Sequence[AnswerStream], *, should_stop: Callable[[], bool], told: Callable[[], object]
) -> None:
    """Lets the models write a token each in turn, so that all are seen writing and their speeds do not tell which is
    which. `told` is called after every round; `should_stop` before every token."""
    writing = list(streams)
    while writing:
        still = []
        for stream in writing:
            if should_stop():
                for unfinished in streams:
                    unfinished.stop()
                return
            if stream.advance():
                still.append(stream)
        writing = still
        told()


def encoder_of(loaded: LoadedModel, template: Template | None) -> tuple[PromptEncoder, Template]:
    """What turns a conversation into the model's ids, and the template it uses."""
    used: Template = template or ("chat" if loaded.tokenizer.chat_template else "plain")
    eos_ids = end_of_text_ids(loaded.lm.model, loaded.tokenizer)
    return PromptEncoder(loaded.tokenizer, template=used, eos_ids=eos_ids), used


def _check_context(loaded: LoadedModel, prompt_tokens: int, max_new_tokens: int) -> None:
    if prompt_tokens + max_new_tokens > loaded.context:
        raise ContextTooShort(
            f"the prompt has {prompt_tokens} tokens and max_new_tokens is {max_new_tokens}; the model has "
            f"{loaded.context} in all: shorten the prompt or lower max_new_tokens",
            "max_new_tokens",
        )
