"""The lean pass gives the states of the model's own, for every architecture it says it covers, and for no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from worker.distill.lean import LLAMA_SHAPED, lean_body
from worker.distill.lean_columns import LeanColumns
from worker.distill.models import SamplingCopy, SplitModel, load_model

CPU = torch.device("cpu")
ROTARY = {"rope_type": "llama3", "rope_theta": 10_000.0, "factor": 4.0, "low_freq_factor": 1.0}
ROTARY |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 16}
MODELS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "llama, long context": (LlamaConfig, LlamaForCausalLM, {"rope_parameters": ROTARY}),
    "llama with biases": (LlamaConfig, LlamaForCausalLM, {"attention_bias": True, "mlp_bias": True}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": None, "head_dim": 16}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16}),
}


def tiny(name: str, **changes: Any) -> PreTrainedModel:
    config_class, model_class, settings = MODELS[name]
    shape = {
        "vocab_size": 320,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 0.3,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    torch.manual_seed(0)
    model = model_class(config_class(**shape | settings | changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms and biases, which start as ones and zeros
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def states(columns: LeanColumns, ids_BT: torch.Tensor, visible_BT: torch.Tensor) -> torch.Tensor:
    """Some columns at once, then one token per row at a time."""
    first_BTD = columns.append(ids_BT[:, :9], visible_BT[:, :9])
    rows = list(range(len(ids_BT)))
    steps = [columns.step(ids_BT[:, t], rows) for t in range(9, ids_BT.shape[1])]
    return torch.cat([first_BTD, torch.stack(steps, 1)], 1)


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_states_are_the_models_own(name: str, frozen: bool) -> None:
    model = tiny(name).requires_grad_(not frozen)
    ids_BT, visible_BT = torch.randint(0, 320, (3, 20)), torch.ones(3, 20, dtype=torch.bool)
    visible_BT[1, :4] = False
    position_BT = (visible_BT.cumsum(1) - 1).clamp_min(0)
    with torch.no_grad():
        expected_BTD = model.model(
            input_ids=ids_BT, attention_mask=visible_BT.long(), position_ids=position_BT, use_cache=False
        ).last_hidden_state
    body = lean_body(model)
    assert body is not None
    found_BTD = states(LeanColumns(body, rows=3, columns=20), ids_BT, visible_BT)
    torch.testing.assert_close(found_BTD[visible_BT], expected_BTD[visible_BT], atol=2e-5, rtol=2e-4)


def test_every_covered_architecture_is_tested() -> None:
    assert {config_class.model_type for config_class, _, _ in MODELS.values()} == LLAMA_SHAPED


def test_packed_weights_are_the_models_own_and_follow_the_student() -> None:
    """One tensor per product and no second copy: what `SamplingCopy.refresh` writes is what sampling reads."""
    student = SplitModel(tiny("qwen2"), vocabulary_size=320)
    sampler = SamplingCopy(student, dtype=torch.bfloat16)
    assert sampler.lm.lean is not None
    attention = sampler.lm.model.model.layers[0].self_attn
    storages = {getattr(attention, name).weight.untyped_storage().data_ptr() for name in ("q_proj", "k_proj", "v_proj")}
    assert len(storages) == 1
    with torch.no_grad():
        for parameter in student.model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    sampler.refresh()
    ids_BT = torch.randint(0, 320, (2, 12))
    found_BTD = states(LeanColumns(sampler.lm.lean, rows=2, columns=12), ids_BT, torch.ones_like(ids_BT).bool())
    with torch.no_grad():
        expected_BTD = sampler.lm.hidden(ids_BT)
        master_BTD = student.hidden(ids_BT)
    size = float(master_BTD.abs().max())
    torch.testing.assert_close(found_BTD, expected_BTD, atol=0.05 * size, rtol=0.1)
    torch.testing.assert_close(found_BTD.float(), master_BTD, atol=0.1 * size, rtol=0.1)


def test_other_architectures_keep_their_own_pass(gemma_folder: Path) -> None:
    assert SplitModel(load_model(str(gemma_folder), device=CPU), vocabulary_size=320).lean is None
    assert lean_body(tiny("llama", hidden_act="gelu")) is None
    dynamic = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0}
    assert lean_body(tiny("llama", rope_parameters=dynamic)) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_does_more_than_its_name_says_keeps_its_own_pass(dtype: torch.dtype) -> None:
    model = tiny("llama").to(dtype)
    assert SplitModel(model, vocabulary_size=320).lean is not None
    model.model.layers[1].mlp.register_forward_hook(lambda module, inputs, output: output * 1.5)
    assert lean_body(model) is not None
    assert SplitModel(model, vocabulary_size=320).lean is None


def test_a_window_is_not_full_attention() -> None:
    model = tiny("mistral", sliding_window=6)
    assert lean_body(model) is None
