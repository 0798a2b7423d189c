"""A .gguf file as an ordinary Hugging Face folder, converted once and kept in the model cache.

Knows that transformers needs tens of seconds to parse a GGUF header, for every load. Does not know what the model
is used for; from here on it is a folder like any other.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import tempfile
from pathlib import Path

import torch
from huggingface_hub.constants import HF_HOME
from transformers import AutoModelForCausalLM, AutoTokenizer


def converted(path: Path, *, cache: Path | None = None) -> Path:
    """The folder that holds the weights (float16: GGUF scales are float16 too) and the tokenizer of the file `path`.

    Kept under Hugging Face's cache folder by path, size and time of change. Raises OSError if there is no such file,
    ValueError if it is no model that transformers can read.
    """
    path = path.expanduser().resolve()
    found = path.stat()
    key = hashlib.sha256(f"{path}|{found.st_size}|{found.st_mtime_ns}".encode()).hexdigest()[:16]
    folder = (cache or Path(HF_HOME) / "stillhouse") / f"{path.stem}-{key}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".partial-"))
        try:
            _convert(path, partial)
            os.rename(partial, folder)  # atomic: another process may be converting the same file
        except (struct.error, KeyError, IndexError) as error:  # what the parser stumbles over in a broken file
            raise ValueError(f"{path.name} is no readable GGUF model: {error!r}") from error
        except OSError:
            if not folder.exists():
                raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return folder


def _convert(path: Path, folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float16)
    # Both say that the weights are quantized, which they no longer are; save_pretrained would refuse them.
    del model.config.quantization_config
    model.hf_quantizer = None
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(folder)
