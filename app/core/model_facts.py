"""What can be known of a model without loading it: sizes, vocabulary, context, chat template.

Knows configuration files, tokenizers, safetensors headers and GGUF headers. Needs no torch, never runs code that came
with a model, and does not know how to load one. Used at submission, and by the trainer before it loads anything.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from app.core.auto_classes import auto_classes
from app.core.errors import (
    ContextTooShort,
    ModelNotFound,
    ModelUnreadable,
    NoChatTemplate,
    TooManyLayers,
    VocabularyMismatch,
)
from app.core.job_config import DistillConfig, FromTeacherStudent

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|blk)\.\d+\.")
# Everything a tokenizer or a configuration may need, but neither weights nor code.
_SMALL_FILES = ["*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken"]


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """`vocabulary_size` counts rows of the embedding, padding included; `tokens` maps each real token to its id."""

    source: str
    layers: int
    hidden_size: int
    kv_width: int  # numbers that one layer caches per token, for keys (and as many for values)
    vocabulary_size: int
    context: int | None  # tokens; None when the architecture has no limit
    parameters: int  # tied ones once
    layer_parameters: int  # of one layer
    tokens: Mapping[str, int]
    has_chat_template: bool


def read_facts(model: str, *, field: str) -> ModelFacts:
    """Facts of a hub id, a local folder or a .gguf file; `field` is the setting that named it, for error messages.

    Raises ModelNotFound (nothing there, or the hub does not answer) and ModelUnreadable (it is no causal language
    model that can be loaded without running code of its own).
    """
    # os.path rather than Path: text that cannot be a path at all (too long, a NUL) is simply not there.
    if os.path.isfile(model) and model.endswith(".gguf"):
        return _read_gguf(Path(model), model, field=field)
    folder = small_files(model, field=field)
    weights = None if os.path.isdir(model) else _hub_weights(folder, model, field=field)
    return _read_folder(folder, model, field=field, weights=weights)


def small_files(model: str, *, field: str) -> Path:
    """The folder with the configuration and tokenizer of a local folder or hub id, weights not included.

    Raises ModelNotFound, and ModelUnreadable for a file.
    """
    if os.path.isdir(model):
        return Path(model)
    if os.path.isfile(model):
        raise ModelUnreadable(f"{model} is a file but no .gguf file; give the model's folder instead", field)
    if not _may_be_hub_id(model):
        raise ModelNotFound(f"there is no file or folder {model} on the service's machine", field)
    from huggingface_hub import snapshot_download

    with _hub_errors(model, field=field):
        # Falls back to an earlier download when the hub does not answer.
        return Path(snapshot_download(model, allow_patterns=_SMALL_FILES, etag_timeout=10))


def shared_vocabulary(teacher: ModelFacts, student: ModelFacts, *, field: str) -> int:
    """How many ids both models have when they share a tokenizer, so that both can be cut there.

    Embeddings may differ in padding rows after the last token. Anything else raises VocabularyMismatch.
    """
    shared = min(teacher.vocabulary_size, student.vocabulary_size)
    last_token = max(teacher.tokens.values(), default=-1)
    same_size = teacher.vocabulary_size == student.vocabulary_size
    if teacher.tokens != student.tokens or (shared <= last_token and not same_size):
        raise VocabularyMismatch(
            f"teacher and student must share a tokenizer: {teacher.source} has {len(teacher.tokens)} tokens in a "
            f"vocabulary of {teacher.vocabulary_size}, {student.source} has {len(student.tokens)} tokens in a "
            f"vocabulary of {student.vocabulary_size}, and they are not the same; "
            "choose a student of the teacher's own family",
            field,
        )
    return shared


def check_models(config: DistillConfig) -> tuple[ModelFacts, ModelFacts]:
    """Everything about the models that can be refused before a run starts; the facts of teacher and student.

    Raises what `read_facts` and `shared_vocabulary` raise, TooManyLayers, ContextTooShort and NoChatTemplate.
    """
    teacher = read_facts(config.teacher.model, field="teacher.model")
    if isinstance(config.student, FromTeacherStudent):
        student = _cut(teacher, layers=config.student.layers)
    else:
        student = read_facts(config.student.model, field="student.model")
        shared_vocabulary(teacher, student, field="student.model")
    new_tokens = config.sampling.max_new_tokens
    for facts in (teacher, student):
        if facts.context is not None and new_tokens >= facts.context:
            raise ContextTooShort(
                f"{new_tokens} new tokens and a prompt do not fit the context of {facts.source} "
                f"({facts.context} tokens); lower it",
                "sampling.max_new_tokens",
            )
    if config.data.template == "chat" and not teacher.has_chat_template:
        raise NoChatTemplate(
            f"the tokenizer of {teacher.source} has no chat template; use alpaca or plain", "data.template"
        )
    return teacher, student


def _cut(teacher: ModelFacts, *, layers: int) -> ModelFacts:
    """A student of `layers` of the teacher's own layers."""
    if layers > teacher.layers:
        raise TooManyLayers(f"{teacher.source} has only {teacher.layers} layers, not {layers}", "student.layers")
    dropped = (teacher.layers - layers) * teacher.layer_parameters
    return replace(teacher, layers=layers, parameters=teacher.parameters - dropped)


# --- Hugging Face folders and the hub ------------------------------------------------------------------------


def _may_be_hub_id(model: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", model) is not None and not model.endswith(".gguf")


def _hub_weights(folder: Path, model: str, *, field: str) -> Any:
    """The safetensors metadata of a hub id; None where an earlier download has the weights themselves."""
    from huggingface_hub import get_safetensors_metadata

    with _hub_errors(model, field=field):
        return None if any(folder.glob("*.safetensors")) else get_safetensors_metadata(model)


@contextmanager
def _hub_errors(model: str, *, field: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the hub's client raises its own errors, its HTTP library's, OSError and ValueError
        reason = str(error).strip().split("\n")[0]
        raise ModelNotFound(
            f"{model} is no folder here, and the model hub gave nothing ({reason}); "
            "check the id, or give a local folder or a .gguf file",
            field,
        ) from error


def _read_folder(folder: Path, model: str, *, field: str, weights: Any = None) -> ModelFacts:
    """`weights` is the safetensors metadata where the folder itself has none."""
    AutoConfig, AutoTokenizer = auto_classes()
    if not (folder / "config.json").is_file():
        raise ModelUnreadable(f"{model} holds no config.json, so it is no Hugging Face model folder", field)
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # transformers raises whatever its parsers and classes do
        raise ModelUnreadable(f"the configuration of {model} cannot be read: {error}", field) from error
    _require_causal(config, model, field=field)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:
        raise ModelUnreadable(f"the tokenizer of {model} cannot be read: {error}", field) from error
    text = config.get_text_config()
    sizes = _folder_sizes(weights or folder, model, tied=bool(config.tie_word_embeddings), field=field)
    return ModelFacts(
        source=model,
        layers=text.num_hidden_layers,
        hidden_size=text.hidden_size,
        kv_width=_kv_width(text),
        vocabulary_size=text.vocab_size,
        context=getattr(text, "max_position_embeddings", None),
        parameters=sum(sizes.values()),
        layer_parameters=_per_layer(sizes.items(), text.num_hidden_layers),
        tokens=tokenizer.get_vocab(),
        has_chat_template=bool(tokenizer.chat_template),
    )


def _kv_width(text_config: Any) -> int:
    heads = getattr(text_config, "num_attention_heads", None)
    if heads is None:
        return 0  # a state-space model caches no keys
    head_dim = getattr(text_config, "head_dim", None) or text_config.hidden_size // heads
    return (getattr(text_config, "num_key_value_heads", None) or heads) * head_dim


def _require_causal(config: Any, model: str, *, field: str) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    known = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    classes = {known} if isinstance(known, str) else set(known or ())
    named = config.architectures or sorted(classes)
    if not classes.intersection(named):
        what = ", ".join(named) or config.model_type
        raise ModelUnreadable(f"{model} is a {what}, not a causal language model that transformers knows", field)


def _folder_sizes(weights: Any, model: str, *, tied: bool, field: str) -> dict[str, int]:
    """How many numbers each tensor has, by name, from the safetensors headers alone."""
    from huggingface_hub import get_local_safetensors_metadata

    try:
        metadata = get_local_safetensors_metadata(weights) if isinstance(weights, Path) else weights
    except Exception as error:  # missing and broken files have classes of their own
        raise ModelUnreadable(f"{model} holds no readable safetensors weights: {error}", field) from error
    sizes = {
        name: prod(tensor.shape) for file in metadata.files_metadata.values() for name, tensor in file.tensors.items()
    }
    if tied:
        sizes.pop("lm_head.weight", None)  # some files carry the tied head a second time
    return sizes


def _per_layer(sizes: Iterable[tuple[str, int]], layers: int) -> int:
    return sum(size for name, size in sizes if _LAYER.search(name)) // layers


# --- GGUF files -----------------------------------------------------------------------------------------------


def _read_gguf(path: Path, model: str, *, field: str) -> ModelFacts:
    import gguf

    try:
        reader = gguf.GGUFReader(path)
        return _gguf_facts(reader, model, field=field)
    except ModelUnreadable:
        raise
    except Exception as error:  # the reader raises ValueError, IndexError, KeyError, ... on broken files
        raise ModelUnreadable(f"{model} is no GGUF file of a language model: {error!r}", field) from error


def _gguf_facts(reader: Any, model: str, *, field: str) -> ModelFacts:
    from gguf import TokenType
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    def value(key: str, default: Any = None) -> Any:
        found = reader.get_field(key)
        return default if found is None else found.contents()

    architecture = value("general.architecture")
    if architecture not in GGUF_CONFIG_MAPPING:
        raise ModelUnreadable(f"{model} has the architecture {architecture}, which transformers does not load", field)
    own = f"{architecture}."
    sizes = {tensor.name: int(tensor.n_elements) for tensor in reader.tensors}
    embedding = next(tensor for tensor in reader.tensors if tensor.name == "token_embd.weight")
    layers, hidden_size = value(f"{own}block_count"), value(f"{own}embedding_length")
    heads = value(f"{own}attention.head_count")
    kv_heads = value(f"{own}attention.head_count_kv", heads)
    head_dim = value(f"{own}attention.key_length", hidden_size // heads)
    types = value("tokenizer.ggml.token_type", ())
    tokens = {token: i for i, token in enumerate(value("tokenizer.ggml.tokens"))}
    # Converters fill the padding rows of the embedding with made-up tokens that are marked as unused.
    padding = {i for i, kind in enumerate(types) if kind == TokenType.UNUSED}
    return ModelFacts(
        source=model,
        layers=layers,
        hidden_size=hidden_size,
        kv_width=kv_heads * head_dim,
        vocabulary_size=int(embedding.shape[1]),  # GGUF lists dimensions innermost first
        context=value(f"{own}context_length"),
        parameters=sum(sizes.values()),
        layer_parameters=_per_layer(sizes.items(), layers),
        tokens={token: i for token, i in tokens.items() if i not in padding},
        has_chat_template=bool(value("tokenizer.chat_template")),
    )
