"""A model's tokenizer and the ids that end its answers, without its weights.

Knows folders, the hub's cache and .gguf files, as model_facts does. Never runs code that came with a model.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from app.core.auto_classes import auto_classes
from app.core.errors import ModelUnreadable
from app.core.model_facts import small_files

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(model: str, *, field: str) -> tuple[PreTrainedTokenizerBase, frozenset[int]]:
    """The tokenizer, chat template included, and every id after which an answer is over: the ones the trainer uses.

    Raises ModelNotFound and ModelUnreadable, which name `field`. A .gguf file can be read where torch is installed.
    """
    if os.path.isfile(model) and model.endswith(".gguf"):
        tokenizer = _from_gguf(Path(model), field=field)
        return tokenizer, _end_ids(tokenizer, None)
    folder = small_files(model, field=field)
    tokenizer = _read(folder, model, field=field)
    return tokenizer, _end_ids(tokenizer, folder)


def _read(folder: Path, model: str, *, field: str, **options: str) -> PreTrainedTokenizerBase:
    _, AutoTokenizer = auto_classes()
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, **options)
    except Exception as error:  # transformers raises whatever its parsers and classes do
        raise ModelUnreadable(f"the tokenizer of {model} cannot be read: {error}", field) from error


def _from_gguf(path: Path, *, field: str) -> PreTrainedTokenizerBase:
    from transformers.utils import is_torch_available

    if not is_torch_available():
        raise ModelUnreadable(
            f"transformers reads the tokenizer of {path.name} only where torch is installed, and this process has "
            "none; name the model's folder or hub id to see token ids (the job itself can be submitted)",
            field,
        )
    return _read(path.parent, path.name, field=field, gguf_file=path.name)


def _end_ids(tokenizer: PreTrainedTokenizerBase, folder: Path | None) -> frozenset[int]:
    """The tokenizer's EOS and those of the generation config, which falls back to the model's own config."""
    ids: set[int] = set()
    for found in (tokenizer.eos_token_id, _configured_end(folder) if folder else None):
        ids.update([found] if isinstance(found, int) else found or [])
    return frozenset(ids)


def _configured_end(folder: Path) -> int | list[int] | None:
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        if file.is_file():
            config = json.loads(file.read_text(encoding="utf-8"))
            end: int | list[int] | None = config.get("eos_token_id")
            return end
    return None
