"""Training through the copy that samples: the student's own values and gradients, without tensors of their size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    PreTrainedModel,
)

from app.core.loss_config import DacKlLoss, ForwardKlLoss, LossConfig, SftLoss, SpanLoss
from tests.worker.distill.conftest import MakeConfig
from worker.distill import trainee as module
from worker.distill.assembly import assemble
from worker.distill.evaluate import response_states
from worker.distill.models import SamplingCopy, SplitModel
from worker.distill.objective import Objective
from worker.distill.step import Stepper
from worker.distill.trainee import Trainee, trainee
from worker.distill.types import Batch, SpanPairs, TokenSequence, make_batch

V, D, PAD = 300, 32, 7
SHAPE: dict[str, Any] = {
    "vocab_size": V,
    "hidden_size": D,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
    "pad_token_id": PAD,
    "bos_token_id": None,
    "eos_token_id": None,
}
GPT2: dict[str, Any] = {"vocab_size": V, "n_embd": D, "n_layer": 2, "n_head": 4, "bos_token_id": None}
MODELS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama, tied": (LlamaForCausalLM, LlamaConfig, SHAPE | {"tie_word_embeddings": True}),
    "llama, untied": (LlamaForCausalLM, LlamaConfig, SHAPE | {"tie_word_embeddings": False}),
    "llama with biases": (LlamaForCausalLM, LlamaConfig, SHAPE | {"attention_bias": True, "mlp_bias": True}),
    "scaled embedding, soft-capped logits": (
        Gemma2ForCausalLM,
        Gemma2Config,
        SHAPE | {"head_dim": 8, "query_pre_attn_scalar": 8},
    ),
    "a head with a bias": (PhiForCausalLM, PhiConfig, SHAPE),
    "transposed weights": (GPT2LMHeadModel, GPT2Config, GPT2 | {"eos_token_id": None, "resid_pdrop": 0.0}),
}
DTYPES = [torch.bfloat16, torch.float32]
LOSSES: list[LossConfig] = [SftLoss(), DacKlLoss(top_k=6, hidden_size=8), SpanLoss()]


def made(name: str) -> PreTrainedModel:
    model_class, config_class, settings = MODELS[name]
    torch.manual_seed(0)
    model = model_class(config_class(**settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms and biases, which start as ones and zeros
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def pair(model: PreTrainedModel, dtype: torch.dtype) -> tuple[SplitModel, SamplingCopy]:
    """The vocabulary is cut by 20 ids at its end."""
    student = SplitModel(model, vocabulary_size=V - 20)
    assert student.is_split
    return student, SamplingCopy(student, dtype=dtype)


def batches() -> list[Batch]:
    """Two micro-batches, with the id for padding inside a text and one id twice."""
    first = [TokenSequence((5, PAD, 9), (11, 12, PAD, 12), True), TokenSequence((8,), (3, 4, 5), True)]
    second = [TokenSequence((20, 21), (22, 23, 24, 25, 26), True)]
    pairs = SpanPairs(torch.tensor([[0, 1], [1, 2]]), torch.tensor([0, 0]))
    return [make_batch(rows, pairs=pairs, pad_id=PAD) for rows in (first, second)]


def gradients(lm: SplitModel | Trainee, student: SplitModel, *, dtype: torch.dtype) -> tuple[list[Any], list[Tensor]]:
    """Metrics and gradients of a window of two micro-batches, in slices of three positions."""
    torch.manual_seed(1)
    objective, window, head = Objective(LOSSES), batches(), torch.nn.Linear(6, V)
    counts, metrics = objective.counts(window), []
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        for batch in window:
            teacher_ND = torch.randn(batch.num_positions, 6)
            metrics.append(
                objective.backward_from_hidden(
                    student_hidden_ND=response_states(lm, batch),
                    student_head=lm.head,
                    teacher_hidden_ND=teacher_ND,
                    teacher_head=head,
                    batch=batch,
                    counts=counts,
                    vocabulary_size=student.vocabulary_size,
                    chunk_positions=3,
                )
            )
    found = [parameter.grad for parameter in student.model.parameters()]
    student.model.zero_grad(set_to_none=True)
    assert None not in [type(gradient) for gradient in found]
    return metrics, [gradient for gradient in found if gradient is not None]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
def test_values_and_gradients_are_the_students_own(name: str, dtype: torch.dtype) -> None:
    """Values to the last bit. Gradients of head and embedding are added in another order: 1e-6 of their size, in
    bfloat16 as well, because they are added in float32 either way."""
    student, sampler = pair(made(name), dtype)
    own_metrics, own = gradients(student, student, dtype=dtype)
    through = trainee(student, sampler, dtype=dtype)
    assert isinstance(through, Trainee)
    metrics, found = gradients(through, student, dtype=dtype)
    assert metrics == own_metrics
    names = [name for name, _ in student.model.named_parameters()]
    assert len(found) == len(own) == len(names)
    off = {n: float((a - b).norm() / a.norm().clamp_min(1e-12)) for n, a, b in zip(names, own, found, strict=True)}
    assert max(off.values()) < 1e-6, off
    assert all(float(gradient.norm()) > 0 for gradient in own)


@pytest.mark.parametrize("block", [1, 7 * D, 2**23])
def test_the_size_of_a_block_changes_nothing(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    student, sampler = pair(made("llama, tied"), torch.float32)
    _, own = gradients(student, student, dtype=torch.float32)
    monkeypatch.setattr(module, "_GRADIENT_BLOCK", block)
    _, found = gradients(Trainee(student, sampler), student, dtype=torch.float32)
    torch.testing.assert_close(found, own, rtol=1e-4, atol=1e-6)


class _Made(TorchDispatchMode):
    """The operations whose result was a new tensor of one of some sizes, backward passes included."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self._sizes = set(sizes)
        self.operations: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {value.data_ptr() for value in args if isinstance(value, Tensor)}
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor) and tensor.numel() in self._sizes and tensor.data_ptr() not in given:
                self.operations.append(str(func))
        return result


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_tensor_of_the_vocabularys_size_and_no_copy_of_a_weight(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GRADIENT_BLOCK", 100 * D)
    student, sampler = pair(made("llama, tied"), dtype)
    products = [m.weight.numel() for m in student.body.modules() if isinstance(m, nn.Linear)]

    def operations(lm: SplitModel | Trainee, sizes: Sequence[int]) -> list[str]:
        with _Made(sizes) as found:
            gradients(lm, student, dtype=dtype)
        return found.operations

    through = Trainee(student, sampler)
    assert operations(through, [V * D]) == ["aten.zeros_like.default"]
    assert len(operations(student, [V * D])) > 4  # one for every slice of the loss, and the embedding's
    casts = [operations(lm, products).count("aten._to_copy.default") for lm in (student, through)]
    assert casts[0] - casts[1] == (len(products) if dtype == torch.bfloat16 else 0)  # what remains are gradients


def test_what_the_copy_does_not_give_is_trained_plainly(caplog: pytest.LogCaptureFixture) -> None:
    """A layer that reads its weight in float32 cannot take it in another type: the student is trained as it is."""
    model: Any = made("llama, tied")
    mlp = model.model.layers[0].mlp

    def forward(x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return mlp.down_proj(mlp.act_fn(nn.functional.linear(x.float(), mlp.gate_proj.weight)))

    mlp.forward = forward
    student = SplitModel(model, vocabulary_size=V)
    copy = SamplingCopy(SplitModel(made("llama, tied"), vocabulary_size=V), dtype=torch.bfloat16)
    assert trainee(student, copy, dtype=torch.bfloat16) is student
    assert "trained with copies" in caplog.text


def test_a_copy_that_lags_behind_is_noticed() -> None:
    student, sampler = pair(made("llama, tied"), torch.bfloat16)
    with torch.no_grad():
        student.model.get_parameter("model.layers.0.mlp.up_proj.weight").mul_(2)
    assert not Trainee(student, sampler).agrees(torch.bfloat16)
    sampler.refresh()
    assert Trainee(student, sampler).agrees(torch.bfloat16)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_steps_are_those_of_the_plain_path(make_config: MakeConfig, precision: str) -> None:
    """`logits: whole` trains the student as it is; with the same random numbers both end at the same weights."""
    weights = {}
    for logits in ("chunked", "whole"):
        config = make_config(
            losses=[{"kind": "sft"}, {"kind": "forward_kl"}],
            sampling={"kind": "ground_truth", "max_new_tokens": 4},
            training={"precision": precision, "logits": logits, "gradient_accumulation": 2, "schedule": "constant"},
        )
        run = assemble(config, emit=lambda event: None, should_stop=lambda: None)
        stepper, before = Stepper(run), [p.detach().clone() for p in run.student.model.parameters()]
        assert isinstance(stepper._trainee, Trainee) == (logits == "chunked")
        for step in (1, 2, 3):
            stepper.take(step)
        after = list(run.student.model.parameters())
        weights[logits] = torch.cat([(b - a).detach().flatten() for a, b in zip(before, after, strict=True)])
    off = float((weights["chunked"] - weights["whole"]).norm() / weights["whole"].norm())
    assert off < (1e-2 if precision == "float32" else 0.2)  # Adam turns any difference near zero into a whole step


def test_forward_kl_of_equal_models_has_no_gradient() -> None:
    """Nothing is added where there is nothing to learn."""
    student, sampler = pair(made("llama, untied"), torch.float32)
    through, (batch, _) = Trainee(student, sampler), batches()
    hidden_ND = response_states(through, batch)
    objective = Objective([ForwardKlLoss()])
    objective.backward_from_hidden(
        student_hidden_ND=hidden_ND,
        student_head=through.head,
        teacher_hidden_ND=hidden_ND.detach(),
        teacher_head=student.head,
        batch=batch,
        counts=objective.counts([batch]),
        vocabulary_size=student.vocabulary_size,
        chunk_positions=3,
    )
    assert float(student.model.get_parameter("lm_head.weight").grad.abs().max()) < 1e-6
