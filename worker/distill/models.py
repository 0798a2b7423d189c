"""Loading teachers and students, building a student from a teacher's layers, and splitting body from head.

Knows transformers' models. Does not know data, losses or how tokens are sampled.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from app.core.errors import ModelNotFound, ModelUnreadable
from app.core.job_config import CheckpointStudent, FromTeacherStudent, StudentConfig
from worker.distill.gguf import converted
from worker.distill.layer_choice import decoder_layers, kept_layers
from worker.distill.lean import LeanBody, lean_body
from worker.distill.lean_columns import LeanColumns

log = logging.getLogger(__name__)
SPLIT_TOLERANCE = 1e-3  # largest logit difference at which head(body(x)) counts as the model itself, float32
# Relative distance of a state at which the lean pass counts as the model, in float32 and in 16 bits, where rounding
# alone makes 0.02 to 0.07 (without the MLP of one of 10 layers: 0.7, of one of 30: 0.15).
LEAN_TOLERANCE, LEAN_TOLERANCE_NARROW = 1e-4, 0.12
LEAN_PROBE = 13  # tokens that are read at once; three more follow one by one


@dataclass(frozen=True)
class TrainedModel:
    """Weights that exist: a hub id, a local folder or a .gguf file."""

    model: str


@dataclass(frozen=True)
class UntrainedStudent:
    """A student as it was before its first step; built again whenever it is needed, so that no disk holds it."""

    teacher: str
    student: StudentConfig


@dataclass(frozen=True)
class CheckpointedStudent:
    """A student as a checkpoint in `folder` has it: built as it began, with the weights of that file, whose SHA-256 is
    part of what names it: other weights in the same place are another model."""

    teacher: str
    student: StudentConfig
    folder: str
    sha256: str


ModelSource = TrainedModel | UntrainedStudent | CheckpointedStudent


def _location(model: str) -> str:
    """What `from_pretrained` takes: a folder (a .gguf file is converted to one) or a hub id."""
    if model.endswith(".gguf"):
        return str(converted(Path(model)))
    folder = Path(model).expanduser()
    return str(folder) if folder.exists() else model


def load_tokenizer(model: str) -> PreTrainedTokenizerBase:
    """The model's own fast tokenizer, chat template included. Raises ModelNotFound or ModelUnreadable."""
    try:
        return AutoTokenizer.from_pretrained(_location(model))
    except OSError as error:
        raise ModelNotFound(f"no tokenizer can be loaded from {model!r}: {error}", "model") from error
    except (ValueError, KeyError) as error:
        raise ModelUnreadable(f"the tokenizer of {model!r} cannot be read: {error}", "model") from error


def load_model(model: str, *, device: torch.device, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """A causal language model in eval mode, in `dtype` or as it was stored. Raises ModelNotFound or ModelUnreadable.

    Remote code is never run.
    """
    try:
        loaded = AutoModelForCausalLM.from_pretrained(_location(model), dtype=dtype or "auto")
    except OSError as error:
        raise ModelNotFound(f"no weights can be loaded from {model!r}: {error}", "model") from error
    except (ValueError, KeyError) as error:
        raise ModelUnreadable(f"{model!r} is no causal language model that can be loaded: {error}", "model") from error
    return loaded.to(device).eval()


def student_from_teacher(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: FromTeacherStudent
) -> PreTrainedModel:
    """A float32 copy of `teacher` with `config.layers` of its layers; it shares no tensor with the teacher.

    Layers are judged in the device's fastest type, whatever type the teacher is in: the same choice for every caller.
    """
    fastest = compute_dtype("auto", teacher.device)
    judged = teacher if teacher.dtype == fastest else copy.deepcopy(teacher).to(fastest)
    keep = kept_layers(judged, tokenizer, count=config.layers, choice=config.choice)
    del judged
    student_config = copy.deepcopy(teacher.config)
    text_config = student_config.get_text_config()
    text_config.num_hidden_layers = len(keep)
    if getattr(text_config, "layer_types", None):
        text_config.layer_types = [text_config.layer_types[i] for i in keep]
    student = AutoModelForCausalLM.from_config(student_config, dtype=torch.float32)
    owner, name, _ = decoder_layers(student)
    wanted = student.state_dict()
    prefix = next(key for key, module in student.named_modules() if module is owner)
    layer_prefix = f"{prefix}.{name}." if prefix else f"{name}."
    source = teacher.state_dict()
    weights = {}
    for key in wanted:
        if key.startswith(layer_prefix):
            index, rest = key[len(layer_prefix) :].split(".", 1)
            weights[key] = source[f"{layer_prefix}{keep[int(index)]}.{rest}"]
        else:
            weights[key] = source[key]
    student.load_state_dict(weights)
    student.tie_weights()
    student.generation_config = copy.deepcopy(teacher.generation_config)
    return student.to(teacher.device).eval()


def build_student(
    config: StudentConfig, teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> PreTrainedModel:
    """The student before its first step, float32 (master weights), on the teacher's device. `tokenizer` is shared."""
    if isinstance(config, CheckpointStudent):
        return load_model(config.model, device=teacher.device, dtype=torch.float32)
    return student_from_teacher(teacher, tokenizer, config)


class SplitModel:
    """A causal language model as body (tokens -> hidden states) and head (hidden states -> logits).

    The split lets callers choose positions before the head, so that no [B, T, V] tensor need ever exist. It is
    checked against the model on a few tokens; where it does not hold, the body is the whole model, its "hidden
    states" are the logits, and the head is the identity: slower, never wrong.
    """

    def __init__(self, model: PreTrainedModel, *, vocabulary_size: int, split: bool = True, lean: bool = True) -> None:
        self.model = model
        self.vocabulary_size = vocabulary_size
        self._base: Any = getattr(model, model.base_model_prefix, None)
        self._lm_head: Any = model.get_output_embeddings()
        self.is_split = split and self._base is not None and self._lm_head is not None and self._split_holds()
        self.lean = self._lean() if lean and self.is_split else None

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def body(self) -> nn.Module:
        """What makes hidden states, of a split model."""
        return self._base

    @property
    def projection(self) -> nn.Module:
        """The head's product alone, of a split model."""
        return self._lm_head

    def hidden(self, input_ids_BT: Tensor, *, weights: Mapping[str, Tensor] | None = None, **kwargs: Any) -> Tensor:
        """Last hidden states [B, T, D]; with an unsplit model D is the vocabulary. `kwargs` go to the model.

        `weights` take the places of those parameters of the body that they are named after, for this pass.
        """
        kwargs.setdefault("use_cache", False)
        if self.is_split:
            kwargs["input_ids"] = input_ids_BT
            return functional_call(self._base, dict(weights or {}), kwargs=kwargs, tie_weights=False).last_hidden_state
        return self.model(input_ids=input_ids_BT, **kwargs).logits

    def head(self, hidden_XD: Tensor, product: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Logits [..., V] over the shared vocabulary, in the hidden states' type. `product` replaces `projection`."""
        logits = self._project(hidden_XD, product) if self.is_split else hidden_XD
        return logits[..., : self.vocabulary_size]

    def _project(self, hidden_XD: Tensor, product: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """The head with the scalings that published architectures put around it."""
        config = self.model.config.get_text_config()
        logits = product(hidden_XD) if product else self._lm_head(hidden_XD.to(self._lm_head.weight.dtype))
        if scale := getattr(config, "logit_scale", None):  # Cohere
            logits = logits * scale
        if scaling := getattr(config, "logits_scaling", None):  # Granite
            logits = logits / scaling
        if cap := getattr(config, "final_logit_softcapping", None):  # Gemma 2
            logits = torch.tanh(logits / cap) * cap
        return logits

    @torch.no_grad()
    def _lean(self) -> LeanBody | None:
        """The lean body, if there is one for the architecture and it gives the model's states on a few tokens."""
        body = lean_body(self.model)
        if body is None:
            return None
        probe_1T = torch.linspace(0, self.vocabulary_size - 1, LEAN_PROBE + 3, device=self.device).long()[None]
        whole_TD = self._base(input_ids=probe_1T, use_cache=False).last_hidden_state[0].float()
        columns = LeanColumns(body, rows=1, columns=probe_1T.shape[1])
        first_1T = probe_1T[:, :LEAN_PROBE]
        parts = [columns.append(first_1T, torch.ones_like(first_1T, dtype=torch.bool))[0]]
        parts += [columns.step(token_1, [0]) for token_1 in probe_1T[0, LEAN_PROBE:, None]]
        size_T = whole_TD.norm(dim=-1).clamp_min(1e-6)  # a padding token's state may be zero
        off_T = (whole_TD - torch.cat(parts).float()).norm(dim=-1) / size_T
        off = float(off_T.median())  # reserved tokens, never trained, may give any state in a narrow type
        if off <= (LEAN_TOLERANCE if self.model.dtype == torch.float32 else LEAN_TOLERANCE_NARROW):
            return body
        log.warning("%s: the lean pass is off by %.2g; the model's own is used", type(self.model).__name__, off)
        return None

    @torch.no_grad()
    def _split_holds(self) -> bool:
        probe_BT = torch.arange(4, device=self.device).unsqueeze(0) % self.vocabulary_size
        whole = self.model(input_ids=probe_BT, use_cache=False).logits
        parts = self._project(self._base(input_ids=probe_BT, use_cache=False).last_hidden_state)
        tolerance = SPLIT_TOLERANCE if whole.dtype == torch.float32 else 0.05 * float(whole.abs().max())
        holds = parts.shape == whole.shape and float((whole - parts).abs().max()) <= tolerance
        if not holds:
            log.warning("%s cannot be split into body and head; whole logits are used", type(self.model).__name__)
        return holds


class SamplingCopy:
    """A copy of the student in the compute type for sampling; the trained master weights stay float32.

    Autocast would cast every weight again for every token. `refresh()` after an optimizer step copies the weights
    over in one pass. When master and compute type agree there is no copy: `lm` is the student itself.
    """

    def __init__(self, student: SplitModel, *, dtype: torch.dtype) -> None:
        if student.model.dtype == dtype:
            self.lm = student
            self._pairs: tuple[list[Tensor], list[Tensor]] | None = None
            return
        model = copy.deepcopy(student.model).to(dtype).eval().requires_grad_(False)
        self.lm = SplitModel(
            model, vocabulary_size=student.vocabulary_size, split=student.is_split, lean=student.lean is not None
        )
        self._pairs = (list(model.parameters()), list(student.model.parameters()))

    @torch.no_grad()
    def refresh(self) -> None:
        if self._pairs is not None:
            torch._foreach_copy_(*self._pairs)


def end_of_text_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Every id after which a response is over: the tokenizer's EOS and those of the generation config."""
    ids: set[int] = set()
    for found in (tokenizer.eos_token_id, getattr(model.generation_config, "eos_token_id", None)):
        ids.update([found] if isinstance(found, int) else found or [])
    return frozenset(ids)


def compute_dtype(precision: str, device: torch.device) -> torch.dtype:
    """The type that matrix products run in. `auto` takes bfloat16 where the device multiplies it natively."""
    if precision == "auto":
        if device.type == "cuda":
            fast = torch.cuda.is_bf16_supported(including_emulation=False)
        else:
            fast = device.type == "cpu" and bool(torch.cpu.get_capabilities().get("avx512_bf16"))
        return torch.bfloat16 if fast else torch.float32
    return getattr(torch, precision)
