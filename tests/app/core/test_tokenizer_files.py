"""Tokenizers and end ids without weights: the same as the trainer's."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from app.core.errors import ModelNotFound, ModelUnreadable
from app.core.tokenizer_files import load_tokenizer
from tests.tiny_models import make_tiny_model
from worker.distill.models import end_of_text_ids, load_model


@pytest.mark.parametrize("generation_config", [{"eos_token_id": [2, 1]}, {"eos_token_id": 2}, {}, None])
def test_end_ids_are_those_of_the_loaded_model(tmp_path: Path, generation_config: object) -> None:
    folder = make_tiny_model(tmp_path / "model", layers=1)
    file = folder / "generation_config.json"
    if generation_config is None:
        file.unlink(missing_ok=True)
    else:
        file.write_text(json.dumps(generation_config))
    tokenizer, end_ids = load_tokenizer(str(folder), field="teacher")
    model = load_model(str(folder), device=torch.device("cpu"))
    assert end_ids == end_of_text_ids(model, tokenizer)


def test_a_model_without_tokenizer_and_one_that_is_not_there(tmp_path: Path, tiny_teacher: Path) -> None:
    folder = tmp_path / "bare"
    shutil.copytree(tiny_teacher, folder)
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ModelUnreadable, match=r"^teacher:"):
        load_tokenizer(str(folder), field="teacher")
    with pytest.raises(ModelNotFound):
        load_tokenizer("/no/such/folder", field="teacher")


def test_no_torch_is_needed_and_a_gguf_file_without_it_says_so(tiny_teacher: Path, tmp_path: Path) -> None:
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"GGUF")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from app.core.tokenizer_files import load_tokenizer\n"
        "from app.core.errors import ModelUnreadable\n"
        f"print(len(load_tokenizer({str(tiny_teacher)!r}, field='teacher')[1]))\n"
        f"try: load_tokenizer({str(gguf)!r}, field='teacher')\n"
        "except ModelUnreadable as error: print('torch is installed' in str(error))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "True"]
