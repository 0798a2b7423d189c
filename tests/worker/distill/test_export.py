"""The exported folder loads with plain transformers, is complete or absent, and its fingerprint is the weights'."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from worker.distill.export import CARD_NAME, export_model, weights_sha256
from worker.distill.models import load_model, load_tokenizer

CPU = torch.device("cpu")


def test_export_is_an_ordinary_folder_and_replaces_an_older_one(tiny_student: Path, tmp_path: Path) -> None:
    model, tokenizer = load_model(str(tiny_student), device=CPU), load_tokenizer(str(tiny_student))
    folder = tmp_path / "student"
    (folder / "old").mkdir(parents=True)
    (tmp_path / ".tmp-student-x").mkdir()
    (tmp_path / ".tmp-student-x" / "left behind").touch()
    fingerprint = export_model(model, tokenizer, folder, card={"metrics": {"after/eval/kl_ts": 1.5}})
    names = {path.name for path in folder.iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json", "generation_config.json", CARD_NAME} <= names
    assert names.isdisjoint({"old", "left behind"})
    assert [path.name for path in tmp_path.iterdir()] == ["student"]
    card = json.loads((folder / CARD_NAME).read_text())
    assert card == {"metrics": {"after/eval/kl_ts": 1.5}, "weights_sha256": fingerprint}

    loaded, its_tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert weights_sha256(loaded) == fingerprint
    prompt = its_tokenizer.apply_chat_template(
        [{"role": "user", "content": "the dog"}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    assert loaded.generate(**prompt, max_new_tokens=3, do_sample=False).shape[1] > prompt["input_ids"].shape[1]


def test_the_fingerprint_changes_with_any_weight(tiny_student: Path) -> None:
    model = load_model(str(tiny_student), device=CPU)
    before = weights_sha256(model)
    with torch.no_grad():
        model.model.norm.weight[0] += 1e-3
    assert weights_sha256(model) != before
