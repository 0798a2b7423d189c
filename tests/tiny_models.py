"""Real but tiny models for tests: a random Llama (or Gemma 2) with a byte-level tokenizer and a chat template.

Knows how to write a Hugging Face folder in milliseconds. Does not cache: fixtures in conftest.py do.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SPECIAL = ["<pad>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS = "the a small brown dog quickly sees green birds near old houses in quiet gardens and sings to happy children"


def make_tokenizer(extra_tokens: Sequence[str] = (), *, chat_template: str | None = CHAT_TEMPLATE) -> Any:
    """A byte-level BPE tokenizer over all 256 bytes, a few merges, and three special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=[*SPECIAL, *extra_tokens],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([WORDS] * 8, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<|im_end|>")
    fast.chat_template = chat_template
    return fast


def make_tiny_model(
    folder: Path,
    *,
    layers: int = 2,
    seed: int = 0,
    pad_vocabulary_to: int | None = None,
    context: int = 256,
    architecture: str = "llama",
    tie_word_embeddings: bool = True,
    extra_tokens: Sequence[str] = (),
    chat_template: str | None = CHAT_TEMPLATE,
) -> Path:
    """Writes a random causal language model of width 32 into `folder` and returns it.

    `architecture` is llama or gemma2 (tied head, logit soft-capping). `pad_vocabulary_to` makes the embedding longer
    than the tokenizer, as published models do.
    """
    import torch
    from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM

    tokenizer = make_tokenizer(extra_tokens, chat_template=chat_template)
    shape: dict[str, Any] = {
        "vocab_size": pad_vocabulary_to or len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": context,
        "tie_word_embeddings": tie_word_embeddings,
        "initializer_range": 0.3,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
    }
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    if architecture == "gemma2":
        model = Gemma2ForCausalLM(Gemma2Config(**shape, head_dim=8, query_pre_attn_scalar=8))
    else:
        model = LlamaForCausalLM(LlamaConfig(**shape))
    torch.random.set_rng_state(state)
    folder.mkdir(parents=True, exist_ok=True)
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def never_ending(folder: Path) -> Path:
    """Changes a tied model so that greedy answers go on for ever: the end-of-text token's logit is 0, and the largest
    of some hundred random ones is above that."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.get_input_embeddings().weight[model.config.eos_token_id] = 0
    model.save_pretrained(folder)
    return folder


def write_rows(path: Path, rows: int = 24, *, with_response: bool = True) -> Path:
    """Canonical JSONL rows of short, varied sentences."""
    words = WORDS.split()
    lines = []
    for i in range(rows):
        prompt = " ".join(words[(i + k) % len(words)] for k in range(3 + i % 4))
        response = " ".join(words[(3 * i + k) % len(words)] for k in range(4 + i % 5))
        row = {"messages": [{"role": "user", "content": prompt}], "response": response if with_response else None}
        lines.append(json.dumps(row))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
