"""Asking one model for an answer, with its speed: what the side-by-side page shows.

Knows how to keep a few models loaded. Does not know the queue, the database or the other panes.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from app.core.errors import ContextTooShort
from worker.distill.data import PromptEncoder
from worker.distill.export import weights_sha256
from worker.distill.generate import SamplingSettings, sample
from worker.distill.models import (
    ModelSource,
    SplitModel,
    TrainedModel,
    build_student,
    compute_dtype,
    end_of_text_ids,
    load_model,
    load_tokenizer,
)


@dataclass(frozen=True)
class AnswerText:
    """One model's answer. `seconds` is the time of sampling alone, without loading."""

    text: str
    tokens: int
    seconds: float
    finished: bool
    parameters: int
    weights_sha256: str


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
        """Raises ModelNotFound or ModelUnreadable."""
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
        return build_student(source.student, teacher, tokenizer), tokenizer


def answer(
    cache: ModelCache,
    source: ModelSource,
    *,
    messages: Sequence[Mapping[str, str]],
    max_new_tokens: int,
    temperature: float,
    top_p: float,
    seed: int,
) -> AnswerText:
    """The model's answer to the conversation. The same seed and settings give the same answer; temperature 0 is greedy.

    A tokenizer without a chat template gets the plain text. Raises ContextTooShort if it does not fit the model.
    """
    loaded = cache.get(source)
    eos_ids = end_of_text_ids(loaded.lm.model, loaded.tokenizer)
    template = "chat" if loaded.tokenizer.chat_template else "plain"
    encoder = PromptEncoder(loaded.tokenizer, template=template, eos_ids=eos_ids)
    prompt_ids = encoder.prompt([dict(message) for message in messages])
    if len(prompt_ids) + max_new_tokens > loaded.context:
        raise ContextTooShort(
            f"the prompt has {len(prompt_ids)} tokens and max_new_tokens is {max_new_tokens}; the model has "
            f"{loaded.context} in all: shorten the prompt or lower max_new_tokens",
            "max_new_tokens",
        )
    settings = SamplingSettings(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        eos_ids=eos_ids,
        pad_id=loaded.tokenizer.pad_token_id or 0,
    )
    start = time.perf_counter()
    state = sample(loaded.lm, [prompt_ids], settings=settings, generator=torch.Generator().manual_seed(seed))
    response_ids = state.responses()[0]
    return AnswerText(
        text=encoder.text(response_ids),
        tokens=len(response_ids),
        seconds=time.perf_counter() - start,
        finished=response_ids[-1] in eos_ids,
        parameters=loaded.parameters,
        weights_sha256=loaded.weights_sha256,
    )
