"""Loading, building students, and the split into body and head."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from app.core.errors import ModelNotFound, ModelUnreadable
from app.core.job_config import CheckpointStudent, FromTeacherStudent
from tests.tiny_models import make_tiny_model
from worker.distill.models import (
    SamplingCopy,
    SplitModel,
    build_student,
    compute_dtype,
    end_of_text_ids,
    load_model,
    load_tokenizer,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_student_is_made_of_the_teachers_own_layers(tmp_path: Path, architecture: str) -> None:
    teacher = load_model(
        str(make_tiny_model(tmp_path, layers=4, seed=5, architecture=architecture)), device=CPU, dtype=torch.float32
    )
    before = copy.deepcopy(teacher.state_dict())
    student = build_student(FromTeacherStudent(layers=2, choice="even"), teacher, load_tokenizer(str(tmp_path)))
    assert student.config.num_hidden_layers == 2
    for mine, theirs in zip(student.model.layers, (teacher.model.layers[0], teacher.model.layers[3]), strict=True):
        for key, value in theirs.state_dict().items():
            assert torch.equal(mine.state_dict()[key], value)
    assert torch.equal(student.lm_head.weight, teacher.lm_head.weight)
    assert student.lm_head.weight.data_ptr() == student.model.embed_tokens.weight.data_ptr()  # still tied
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(before[key], value) for key, value in teacher.state_dict().items())


def test_a_checkpoint_student_is_loaded_in_float32(tiny_student: Path, teacher_lm: SplitModel) -> None:
    tokenizer = load_tokenizer(str(tiny_student))
    student = build_student(CheckpointStudent(model=str(tiny_student)), teacher_lm.model, tokenizer)
    assert student.dtype == torch.float32
    assert student.config.num_hidden_layers == 2


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
@pytest.mark.parametrize("tied", [True, False])
def test_head_of_body_is_the_model(tmp_path: Path, architecture: str, tied: bool) -> None:
    model = load_model(str(make_tiny_model(tmp_path, architecture=architecture, tie_word_embeddings=tied)), device=CPU)
    ids_BT = torch.randint(0, 320, (2, 7))
    split, whole = (SplitModel(model, vocabulary_size=320, split=split) for split in (True, False))
    assert split.is_split
    assert not whole.is_split
    torch.testing.assert_close(split.head(split.hidden(ids_BT)), model(input_ids=ids_BT).logits)
    torch.testing.assert_close(whole.head(whole.hidden(ids_BT)), model(input_ids=ids_BT).logits)


def test_a_model_that_cannot_be_split_falls_back_to_whole_logits(tiny_student: Path) -> None:
    model = load_model(str(tiny_student), device=CPU)
    model.lm_head.register_forward_hook(lambda module, inputs, output: output * 1.0)  # harmless: still splits
    assert SplitModel(model, vocabulary_size=320).is_split
    model.register_forward_hook(lambda m, i, out: type(out)(logits=out.logits * 2))  # what the head does not know
    lm = SplitModel(model, vocabulary_size=320)
    assert not lm.is_split
    ids_BT = torch.tensor([[3, 4, 5]])
    torch.testing.assert_close(lm.head(lm.hidden(ids_BT)), model(input_ids=ids_BT).logits)


def test_head_is_cut_to_the_shared_vocabulary(tmp_path: Path) -> None:
    model = load_model(str(make_tiny_model(tmp_path, pad_vocabulary_to=352)), device=CPU)
    lm = SplitModel(model, vocabulary_size=320)
    assert lm.head(lm.hidden(torch.tensor([[1, 2]]))).shape == (1, 2, 320)


def test_sampling_copy_follows_the_master_weights(tiny_student: Path) -> None:
    student = SplitModel(load_model(str(tiny_student), device=CPU), vocabulary_size=320)
    sampler = SamplingCopy(student, dtype=torch.bfloat16)
    with torch.no_grad():
        student.model.model.norm.weight.fill_(3.0)
    assert sampler.lm.model.dtype == torch.bfloat16
    assert float(sampler.lm.model.model.norm.weight[0]) != 3.0
    sampler.refresh()
    assert float(sampler.lm.model.model.norm.weight[0]) == 3.0
    assert SamplingCopy(student, dtype=torch.float32).lm is student


def test_end_of_text_ids_join_tokenizer_and_generation_config(tiny_student: Path) -> None:
    model, tokenizer = load_model(str(tiny_student), device=CPU), load_tokenizer(str(tiny_student))
    model.generation_config.eos_token_id = [1, 2]
    assert end_of_text_ids(model, tokenizer) == {1, 2}


def test_missing_and_broken_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="nowhere"):
        load_model(str(tmp_path / "nowhere"), device=CPU)
    (tmp_path / "config.json").write_text('{"model_type": "no_such_architecture"}')
    with pytest.raises(ModelUnreadable, match="no causal language model"):
        load_model(str(tmp_path), device=CPU)


def test_compute_dtype_obeys_an_explicit_precision() -> None:
    assert compute_dtype("float32", CPU) is torch.float32
    assert compute_dtype("bfloat16", CPU) is torch.bfloat16
    assert compute_dtype("auto", CPU) in (torch.float32, torch.bfloat16)
    assert compute_dtype("auto", torch.device("mps")) is torch.float32
