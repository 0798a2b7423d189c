"""The closed world's teacher and starting student: small Llamas trained from scratch, kept on disk by content hash.

Knows shapes, training from scratch and the cache. Does not know regimes, recipes or distillation.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase, get_cosine_schedule_with_warmup

from benchmarks.quality.families import Task
from benchmarks.quality.tokenizer import make_tokenizer
from benchmarks.quality.world import Split, draw_tasks
from worker.distill.data import PromptEncoder
from worker.distill.models import compute_dtype
from worker.distill.types import TokenSequence, make_batch

VOCABULARY_TASKS = 20_000
LONGEST = 64  # tokens of a prompt with its response, chat template included
_POOL = 32  # batches whose rows are sorted by length together: less padding


@dataclass(frozen=True)
class Shape:
    """A Llama with `hidden` / 32 heads."""

    hidden: int
    inner: int
    layers: int


@dataclass(frozen=True)
class Scratch:
    """How a model is trained from nothing: `steps` steps of `batch_size` rows on `tasks` tasks of `split`, and that
    `rounds` times, each with new tasks and a learning rate that rises and falls anew."""

    shape: Shape
    split: Split
    tasks: int
    steps: int
    batch_size: int
    learning_rate: float
    rounds: int = 1
    seed: int = 0

    def draw(self, number: int) -> list[Task]:
        """What it is trained on in round `number`, counted from 0."""
        return draw_tasks(self.split, self.tasks, seed=self.seed + 1 + number)


TEACHER = Scratch(Shape(192, 640, 4), "train", tasks=30_000, steps=3000, batch_size=32, learning_rate=2.5e-3)
STUDENT = Scratch(Shape(80, 256, 2), "start", tasks=3000, steps=450, batch_size=32, learning_rate=3e-3)


def world_tokenizer() -> PreTrainedTokenizerBase:
    """The same one for teacher and student."""
    return make_tokenizer(draw_tasks("train", VOCABULARY_TASKS, seed=0))


def encoder_of(tokenizer: PreTrainedTokenizerBase) -> PromptEncoder:
    return PromptEncoder(tokenizer, template="chat", eos_ids=frozenset({tokenizer.eos_token_id}))


def sequences_of(tasks: Sequence[Task], encoder: PromptEncoder) -> list[TokenSequence]:
    return [
        TokenSequence(
            encoder.prompt([{"role": "user", "content": task.prompt}]),
            encoder.response(task.response, max_tokens=LONGEST),
            is_ground_truth=True,
        )
        for task in tasks
    ]


def trained(scratch: Scratch, *, cache: Path) -> Path:
    """The Hugging Face folder of the model that `scratch` describes, trained now unless `cache` holds it.

    Its name is a hash of the description, of the tasks that it is trained on, and of the vocabulary.
    """
    words, tasks = world_tokenizer(), [scratch.draw(number) for number in range(scratch.rounds)]
    texts = [[task.prompt, task.response] for of_round in tasks for task in of_round]
    content = json.dumps([asdict(scratch), sorted(words.get_vocab()), texts])
    folder = cache / f"model-{hashlib.sha256(content.encode()).hexdigest()[:16]}"
    if not folder.exists():
        torch.manual_seed(scratch.seed)
        model = LlamaForCausalLM(_config(scratch.shape, words))
        for number, of_round in enumerate(tasks):
            train_round(model, sequences_of(of_round, encoder_of(words)), scratch, number=number)
        unfinished = folder.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        model.save_pretrained(unfinished)
        words.save_pretrained(unfinished)
        unfinished.rename(folder)
    return folder


def train_round(
    model: LlamaForCausalLM,
    sequences: Sequence[TokenSequence],
    scratch: Scratch,
    *,
    number: int,
    report_every: int = 100,
) -> None:
    """Cross-entropy on the responses, AdamW, cosine schedule, the device's fastest type."""
    batches = _batches(sequences, scratch, seed=scratch.seed + 2 + number)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=scratch.learning_rate, weight_decay=0.01, fused=True)
    schedule = get_cosine_schedule_with_warmup(optimizer, scratch.steps // 20, scratch.steps)
    dtype = compute_dtype("auto", torch.device("cpu"))
    for step in range(1, scratch.steps + 1):
        batch = make_batch(next(batches), pad_id=model.config.pad_token_id)
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            hidden_BTD = model.model(
                input_ids=batch.input_ids_BT, attention_mask=batch.attention_mask_BT, use_cache=False
            ).last_hidden_state
            loss = cross_entropy(model.lm_head(batch.predicting(hidden_BTD)).float(), batch.labels_N)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % report_every == 0:
            print(f"  from scratch: step {step} of {scratch.steps}, cross-entropy {loss.item():.3f}", flush=True)
    model.eval()


def _config(shape: Shape, words: PreTrainedTokenizerBase) -> LlamaConfig:
    heads = max(1, shape.hidden // 32)
    return LlamaConfig(
        vocab_size=len(words),
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=2 * LONGEST,
        tie_word_embeddings=True,
        initializer_range=1 / math.sqrt(shape.hidden),
        pad_token_id=words.pad_token_id,
        bos_token_id=None,
        eos_token_id=words.eos_token_id,
    )


def _batches(sequences: Sequence[TokenSequence], scratch: Scratch, *, seed: int) -> Iterator[list[TokenSequence]]:
    chance = random.Random(seed)
    size = scratch.batch_size
    while True:
        order = chance.sample(list(sequences), len(sequences))
        for start in range(0, len(order), size * _POOL):
            pool = sorted(order[start : start + size * _POOL], key=lambda s: len(s.prompt_ids) + len(s.response_ids))
            batches = [pool[i : i + size] for i in range(0, len(pool), size)]
            yield from chance.sample(batches, len(batches))
