"""The models and rows that both engines are measured on, written once as ordinary folders and lists.

Knows how to make work equal: a stop token that is never drawn (so that every response has its full length), and
prompts and responses of exact lengths. Does not know engines.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from app.core.job_config import FromTeacherStudent
from app.demo.teacher import find_teacher
from worker.distill.models import load_model, load_tokenizer, student_from_teacher

# A token that SmolLM2's vocabulary reserves and its training never used: as the end of text it is never drawn.
NEVER_DRAWN = "<empty_output>"
TEXT = (
    "Describe how a small distillery on a windy island keeps its barley dry, heats its copper stills, fills oak casks "
    "and waits for years before anyone may taste what the harvest of one wet summer has become. Say who works there, "
    "what they write down each morning, how they know that the spirit is ready, and why no two casks are alike. "
) * 8


@dataclass(frozen=True)
class Work:
    """A teacher and a student on disk, and chat prompts and responses whose lengths in tokens are exact."""

    teacher: str
    student: str
    rows: str
    prompts: list[list[dict[str, str]]]
    responses: list[str]
    new_tokens: int


def _save(model: Any, tokenizer: Any, folder: Path) -> str:
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def _content(tokenizer: Any, *, tokens: int, skip: int, prompt: bool) -> str:
    """Text with exactly `tokens` tokens, the chat template's around a prompt included."""
    ids = tokenizer(TEXT, add_special_tokens=False).input_ids
    for count in range(1, len(ids) - skip):
        text = tokenizer.decode(ids[skip : skip + count]).strip()
        if prompt:
            message = [{"role": "user", "content": text}]
            length = len(tokenizer.apply_chat_template(message, add_generation_prompt=True)["input_ids"])
        else:
            length = len(tokenizer(text, add_special_tokens=False).input_ids)
        if length == tokens:
            return text
    raise ValueError(f"no text of {tokens} tokens")


def make_rows(
    folder: Path, tokenizer: Any, *, prompt_tokens: int, new_tokens: int, count: int
) -> tuple[str, list[Any], list[str]]:
    """A JSONL file of canonical rows, with their prompts and responses."""
    prompts, responses = [], []
    for i in range(count):
        prompts.append([{"role": "user", "content": _content(tokenizer, tokens=prompt_tokens, skip=i, prompt=True)}])
        responses.append(_content(tokenizer, tokens=new_tokens, skip=3 * i + 1, prompt=False))
    path = folder / f"rows-{prompt_tokens}-{new_tokens}-{count}.jsonl"
    lines = [json.dumps({"messages": p, "response": r}) for p, r in zip(prompts, responses, strict=True)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path), prompts, responses


def smollm(folder: Path, *, layers: int, prompt_tokens: int = 82, new_tokens: int = 64, count: int = 24) -> Work:
    """SmolLM2-135M-Instruct and a student of `layers` of its layers."""
    teacher, student = folder / "teacher", folder / f"student-{layers}"
    source = find_teacher()
    if not (teacher / "config.json").exists():
        tokenizer = load_tokenizer(source)
        tokenizer.eos_token = NEVER_DRAWN
        _save(load_model(source, device=torch.device("cpu"), dtype=torch.float32), tokenizer, teacher)
    tokenizer = AutoTokenizer.from_pretrained(teacher)
    if not (student / "config.json").exists():
        whole = AutoModelForCausalLM.from_pretrained(teacher, dtype=torch.float32)
        kept = student_from_teacher(whole, tokenizer, FromTeacherStudent(layers=layers, choice="even"))
        _save(kept, tokenizer, student)
    rows, prompts, responses = make_rows(
        folder, tokenizer, prompt_tokens=prompt_tokens, new_tokens=new_tokens, count=count
    )
    return Work(str(teacher), str(student), rows, prompts, responses, new_tokens)


def big_vocabulary(
    folder: Path, *, like: str, vocabulary: int, prompt_tokens: int, new_tokens: int, count: int = 24
) -> Work:
    """Two random Llamas with a small body and `vocabulary` classes; the tokenizer is that of the folder `like`."""
    tokenizer = AutoTokenizer.from_pretrained(like)
    teacher, student = random_pair(folder, tokenizer, vocabulary=vocabulary, width=256, layers=4)
    rows, prompts, responses = make_rows(
        folder, tokenizer, prompt_tokens=prompt_tokens, new_tokens=new_tokens, count=count
    )
    return Work(teacher, student, rows, prompts, responses, new_tokens)


def random_pair(folder: Path, tokenizer: Any, *, vocabulary: int, width: int, layers: int) -> tuple[str, str]:
    """Folders of a teacher and a student of the same shape and with different random weights."""
    teacher, student = (folder / f"{name}-v{vocabulary}-{width}x{layers}" for name in ("teacher", "student"))
    for seed, path in enumerate((teacher, student)):
        if not (path / "config.json").exists():
            torch.manual_seed(seed)
            config = LlamaConfig(
                vocab_size=vocabulary,
                hidden_size=width,
                intermediate_size=3 * width,
                num_hidden_layers=layers,
                num_attention_heads=width // 64,
                num_key_value_heads=width // 64,
                tie_word_embeddings=True,
                max_position_embeddings=4096,
                pad_token_id=tokenizer.pad_token_id,
                bos_token_id=None,
                eos_token_id=tokenizer.eos_token_id,
            )
            _save(LlamaForCausalLM(config), tokenizer, path)
    return str(teacher), str(student)
