"""Writing a finished student: an ordinary Hugging Face folder, complete or absent.

Knows files and hashes. Does not know training.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

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


def export_student(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, *, card: Mapping[str, Any]
) -> str:
    """Writes safetensors, config, tokenizer and `card` into `folder` and returns the weights' fingerprint.

    Everything goes to a neighbouring folder first and is renamed at the end, so `folder` is never half a model.
    """
    temporary = folder.with_name(folder.name + ".partial")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    fingerprint = weights_sha256(model)
    model.save_pretrained(temporary)
    tokenizer.save_pretrained(temporary)
    (temporary / CARD_NAME).write_text(json.dumps({**card, "weights_sha256": fingerprint}, indent=2), encoding="utf-8")
    if folder.exists():
        shutil.rmtree(folder)
    temporary.rename(folder)
    return fingerprint
