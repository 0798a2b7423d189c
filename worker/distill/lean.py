"""A lean forward pass of Llama-shaped bodies, over the model's own weights, for sampling and for reading along.

Knows layers, rotary positions and attention. Does not know rows, slots or when a cache is rewound: `lean_columns.py`.

A Hugging Face layer spends as much time between its matrix products as in them when a batch has few rows. Here a layer
is five products and an attention; queries, keys and values come from one product, gate and up from another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu
from transformers import PreTrainedModel

# Architectures whose layers are: norm, attention with rotary positions, norm, gated MLP. `lean_body` checks the rest.
LLAMA_SHAPED = frozenset({"llama", "mistral", "qwen2", "qwen3"})
# Kinds of rotary positions whose angles do not depend on how long the text is.
STATIC_ROTARY = frozenset({"default", "linear", "llama3", "yarn"})

# What a layer's attention does: (layer, queries [N, H * E], keys [N, W], values [N, W]) -> mixed values [N, H * E].
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class Projection:
    """Linear layers over the same input as one product.

    With `pack` their weights become views of one tensor, so that whoever updates a layer's weight updates the packed
    one; no second copy exists. Only for models that are not trained, moved or cast afterwards.
    """

    def __init__(self, *layers: nn.Linear, pack: bool) -> None:
        self._layers = layers
        self._weight = _packed([layer.weight for layer in layers]) if pack else None
        biases = [layer.bias for layer in layers]
        self._bias = None
        if pack and biases[0] is not None:
            self._bias = _packed(biases)

    def __call__(self, x_ND: Tensor) -> Tensor:
        if self._weight is not None:
            return linear(x_ND, self._weight, self._bias)
        parts = [linear(x_ND, layer.weight, layer.bias) for layer in self._layers]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _packed(parts: Sequence[Tensor]) -> Tensor:
    whole = torch.cat([part.data for part in parts])
    start = 0
    for part in parts:
        part.data = whole[start : start + len(part)]
        start += len(part)
    return whole


@dataclass(frozen=True)
class Layer:
    """The pieces of one decoder layer."""

    before_attention: nn.Module
    before_mlp: nn.Module
    query_key_value: Projection
    out: Projection
    gate_up: Projection
    down: Projection
    query_norm: nn.Module | None
    key_norm: nn.Module | None


class LeanBody:
    """Tokens -> last hidden states. Letters as in `types.py`, and: H query heads, G key/value heads, E head size,
    W = G * E, C cache columns. Key/value caches are [layer, key or value, row, C, W]."""

    def __init__(self, base: Any, *, pack: bool) -> None:
        config = base.config.get_text_config()
        self.heads: int = config.num_attention_heads
        self.groups: int = config.num_key_value_heads
        self.head_size: int = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.width = self.groups * self.head_size
        self._base = base
        self.layers = [_layer(layer, pack=pack) for layer in base.layers]
        self._angles: tuple[Tensor, Tensor] | None = None

    @property
    def dtype(self) -> torch.dtype:
        return self._base.embed_tokens.weight.dtype

    @property
    def device(self) -> torch.device:
        return self._base.embed_tokens.weight.device

    @torch.no_grad()
    def __call__(
        self, tokens_N: Tensor, position_N: Tensor, attend: Attend, *, wanted_M: Tensor | None = None
    ) -> Tensor:
        """Hidden states [N, D] of N tokens. `attend` keeps keys and values and mixes values, layer by layer.

        Of the tokens `wanted_M` alone ([M, D], in that order) if they are given: others end where nobody needs them
        any more, before the last layer's MLP.
        """
        x_ND = self._base.embed_tokens.weight[tokens_N]
        cos_N1E, sin_N1E = self._rotary(position_N)
        keys_from = self.heads * self.head_size
        values_from = keys_from + self.width
        for index, layer in enumerate(self.layers):
            mixed_NX = layer.query_key_value(_norm(layer.before_attention, x_ND))
            rotated_NHE = mixed_NX[:, :values_from].unflatten(1, (-1, self.head_size))
            if layer.query_norm is not None and layer.key_norm is not None:
                queries, keys = rotated_NHE[:, : self.heads], rotated_NHE[:, self.heads :]
                rotated_NHE = torch.cat([_norm(layer.query_norm, queries), _norm(layer.key_norm, keys)], 1)
            rotated_NX = _rotate(rotated_NHE, cos_N1E, sin_N1E).flatten(1)
            context_NX = attend(index, rotated_NX[:, :keys_from], rotated_NX[:, keys_from:], mixed_NX[:, values_from:])
            if wanted_M is not None and index == len(self.layers) - 1:
                x_ND, context_NX = x_ND[wanted_M], context_NX[wanted_M]
            x_ND = x_ND + layer.out(context_NX)
            gate_up_NF = layer.gate_up(_norm(layer.before_mlp, x_ND))
            gate_NF, up_NF = gate_up_NF.chunk(2, -1)
            x_ND = x_ND + layer.down(silu(gate_NF).mul_(up_NF))
        return _norm(self._base.norm, x_ND)

    def _rotary(self, position_N: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the first half of a head [N, 1, E / 2] (the second half has the same angles)."""
        needed = int(position_N.max()) + 1
        if self._angles is None or len(self._angles[0]) < needed:
            columns = max(needed, 512, 2 * len(self._angles[0]) if self._angles else 0)
            like = self._base.embed_tokens.weight[:1, :1]
            cos, sin = self._base.rotary_emb(like, torch.arange(columns, device=like.device)[None])
            half = self.head_size // 2
            self._angles = cos[0, :, None, :half].contiguous(), sin[0, :, None, :half].contiguous()
        return self._angles[0][position_N], self._angles[1][position_N]


def one_token_each(
    queries_NX: Tensor, keys_NCW: Tensor, values_NCW: Tensor, mask: Tensor | None, groups: int
) -> Tensor:
    """Attention of one query token per row over its row's columns; the heads of a group run as one small matrix."""
    rows, columns, width = keys_NCW.shape
    size = width // groups
    mixed_NGHE = scaled_dot_product_attention(
        queries_NX.view(rows, groups, -1, size),
        keys_NCW.view(rows, columns, groups, size).transpose(1, 2),
        values_NCW.view(rows, columns, groups, size).transpose(1, 2),
        attn_mask=mask,
    )
    return mixed_NGHE.reshape(rows, -1)


def many_tokens(
    queries_BTX: Tensor, keys_BCW: Tensor, values_BCW: Tensor, mask: Tensor | None, *, groups: int
) -> Tensor:
    """Attention of T query tokens per row; without a mask they are the row's only tokens, in order."""
    rows, tokens, _ = queries_BTX.shape
    size = keys_BCW.shape[-1] // groups
    mixed_BHTE = scaled_dot_product_attention(
        queries_BTX.view(rows, tokens, -1, size).transpose(1, 2),
        keys_BCW.unflatten(-1, (groups, size)).transpose(1, 2),
        values_BCW.unflatten(-1, (groups, size)).transpose(1, 2),
        attn_mask=mask,
        is_causal=mask is None,
        enable_gqa=True,
    )
    return mixed_BHTE.transpose(1, 2).reshape(rows, tokens, -1)


def _rotate(x_NHE: Tensor, cos_N1E: Tensor, sin_N1E: Tensor) -> Tensor:
    first, second = x_NHE.chunk(2, -1)
    return torch.cat(
        [
            torch.addcmul(first * cos_N1E, second, sin_N1E, value=-1),
            torch.addcmul(second * cos_N1E, first, sin_N1E),
        ],
        -1,
    )


def _norm(module: Any, x_ND: Tensor) -> Tensor:
    return rms_norm(x_ND, x_ND.shape[-1:], module.weight, module.variance_epsilon)


def _layer(layer: Any, *, pack: bool) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    return Layer(
        before_attention=layer.input_layernorm,
        before_mlp=layer.post_attention_layernorm,
        query_key_value=Projection(attention.q_proj, attention.k_proj, attention.v_proj, pack=pack),
        out=Projection(attention.o_proj, pack=False),
        gate_up=Projection(mlp.gate_proj, mlp.up_proj, pack=pack),
        down=Projection(mlp.down_proj, pack=False),
        query_norm=getattr(attention, "q_norm", None),
        key_norm=getattr(attention, "k_norm", None),
    )


def sees_every_column(config: Any) -> bool:
    """Whether every layer attends to all earlier columns: no sliding window, no recurrent state."""
    types = set(getattr(config, "layer_types", None) or ["full_attention"])
    return types == {"full_attention"} and not getattr(config, "sliding_window", None)


def lean_body(model: PreTrainedModel) -> LeanBody | None:
    """The lean pass over `model`, or None for an architecture it does not cover.

    Weights are packed when the model is frozen (see `Projection`). Whether the pass computes what the model computes
    is for the caller to check: see `SplitModel`.
    """
    config = model.config.get_text_config()
    base: Any = getattr(model, model.base_model_prefix, None)
    rotary = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    covered = (
        config.model_type in LLAMA_SHAPED
        and base is not None
        and getattr(config, "hidden_act", None) == "silu"
        and rotary in STATIC_ROTARY
        and sees_every_column(config)
        and all(hasattr(base, name) for name in ("embed_tokens", "layers", "norm", "rotary_emb"))
    )
    if not covered:
        return None
    return LeanBody(base, pack=not any(p.requires_grad for p in model.parameters()))
