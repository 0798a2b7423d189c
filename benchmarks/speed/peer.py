"""TRL's trainers as arms of the benchmark, held at every step boundary by a callback.

Knows TRL's public settings. Runs in the benchmark environment only, where TRL is installed.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback


@dataclass(frozen=True)
class PeerSpec:
    """What the peer trains on. `weights`: the type in which the student is held (and updated)."""

    teacher: str
    student: str
    prompts: list[list[dict[str, str]]]
    responses: list[str]
    batch_size: int
    new_tokens: int
    trainer: Literal["distillation", "gkd"] = "distillation"
    weights: Literal["float32", "bfloat16"] = "float32"
    bf16: bool = False
    teacher_weights: Literal["float32", "bfloat16"] = "float32"
    settings: dict[str, Any] = field(default_factory=dict)


class _Held(TrainerCallback):
    def __init__(self, meter: Any, tokens: int) -> None:
        self._meter = meter
        self._tokens = tokens
        self._ran = False

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self._ran and not self._meter.boundary():
            control.should_training_stop = True

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._ran = True
        if not self._meter.boundary(self._tokens):
            control.should_training_stop = True


def run(spec: PeerSpec, meter: Any) -> None:
    """An engine for `Arm`: forward KL on the student's own samples, one optimizer step per order."""
    tokenizer = AutoTokenizer.from_pretrained(spec.teacher, padding_side="left")
    student = AutoModelForCausalLM.from_pretrained(spec.student, dtype=getattr(torch, spec.weights))
    teacher = AutoModelForCausalLM.from_pretrained(spec.teacher, dtype=getattr(torch, spec.teacher_weights))
    with tempfile.TemporaryDirectory() as folder:
        shared: dict[str, Any] = {
            "output_dir": folder,
            "per_device_train_batch_size": spec.batch_size,
            "gradient_accumulation_steps": 1,
            "gradient_checkpointing": False,
            "max_steps": 10_000,
            "logging_steps": 10_000,
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "bf16": spec.bf16,
            "use_cpu": not torch.cuda.is_available(),
            "dataloader_pin_memory": False,
            "temperature": 1.0,
            "beta": 0.0,
            **spec.settings,
        }
        build = _distillation if spec.trainer == "distillation" else _gkd
        trainer = build(spec, shared, student, teacher, tokenizer)
        trainer.add_callback(_Held(meter, spec.batch_size * spec.new_tokens))
        trainer.train()


def _distillation(spec: PeerSpec, shared: dict[str, Any], student: Any, teacher: Any, tokenizer: Any) -> Any:
    from datasets import Dataset
    from trl import DistillationConfig, DistillationTrainer

    args = DistillationConfig(**shared, max_completion_length=spec.new_tokens, top_p=1.0, top_k=0)
    data = Dataset.from_dict({"prompt": spec.prompts})
    return DistillationTrainer(student, teacher, args=args, train_dataset=data, processing_class=tokenizer)


def _gkd(spec: PeerSpec, shared: dict[str, Any], student: Any, teacher: Any, tokenizer: Any) -> Any:
    from datasets import Dataset
    from trl.experimental.gkd import GKDConfig, GKDTrainer

    args = GKDConfig(**shared, max_new_tokens=spec.new_tokens, lmbda=1.0, max_length=None)
    rows = [
        [*prompt, {"role": "assistant", "content": response}]
        for prompt, response in zip(spec.prompts, spec.responses, strict=True)
    ]
    data = Dataset.from_dict({"messages": rows})
    return GKDTrainer(student, teacher, args=args, train_dataset=data, processing_class=tokenizer)
