"""Writing a finished model: an ordinary Hugging Face folder, complete or absent.

Knows files and hashes. Does not know training.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from worker.distill.disk import need_space, new_folder, remove_unfinished

CARD_NAME = "distillation.json"


def weights_sha256(model: PreTrainedModel) -> str:
    """A fingerprint of the weights themselves: every parameter's name, type, shape and bytes, in name order.

    The same for a model in memory and after it was saved and loaded, whatever files it was split into.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.named_parameters()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()


def export_model(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, *, card: Mapping[str, Any]
) -> str:
    """Writes safetensors, config, tokenizer and `card` into `folder` and returns the weights' fingerprint.

    Everything goes to a neighbouring folder first and is renamed at the end, so `folder` is never half a model. Raises
    DiskFull.
    """
    needed = sum(tensor.numel() * tensor.element_size() for tensor in model.parameters())
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_unfinished(folder.parent)
    need_space(needed, folder.parent, f"the model {folder.name}")
    with new_folder(folder, f"the model {folder.name}") as temporary:
        fingerprint = weights_sha256(model)
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        text = json.dumps({**card, "weights_sha256": fingerprint}, indent=2)
        (temporary / CARD_NAME).write_text(text, encoding="utf-8")
    return fingerprint


def read_card(folder: Path) -> dict[str, Any] | None:
    """The card of an exported model; None where there is none."""
    try:
        return json.loads((folder / CARD_NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
