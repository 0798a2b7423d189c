"""The student as it is trained: no second copy of its weights, and no second tensor for the gradient of its vocabulary.

Knows linear layers, an embedding and autograd. Does not know losses, nor when the copy that samples is refreshed.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers.pytorch_utils import Conv1D

from worker.distill.models import SamplingCopy, SplitModel

log = logging.getLogger(__name__)
# What autocast computes in the narrow type; their weights are taken from the copy that samples.
_PRODUCTS = (nn.Linear, Conv1D)
# Numbers of the vocabulary's gradient that are computed at once before they are added (16 MiB in bfloat16).
_GRADIENT_BLOCK = 2**23


class Trainee:
    """`hidden` and `head` of a split student, with the same values and gradients as its own, in less memory [ours].

    Autocast would cast every weight for a pass and keep the casts until its end, though the copy that samples has
    them already: here products read that copy, and their gradients go to the student's float32 weights. The gradients
    of head and embedding, each as large as the vocabulary, are added to `.grad` piece by piece; autograd would make
    a tensor of that size for every slice of the loss, and one more for the embedding.

    The copy must be refreshed after every change of the student's weights. Works for any architecture that
    `SplitModel` splits; a product, head or embedding of a class of its own is left to autocast and autograd.
    """

    def __init__(self, student: SplitModel, sampler: SamplingCopy) -> None:
        assert student.is_split, "a model that cannot be split is trained as it is"
        self._student = student
        self._products = _pairs(student, sampler)
        self._head, self._head_copy = student.projection, sampler.lm.projection
        embedding = student.model.get_input_embeddings()
        self._embedding = embedding if _is_plain(embedding) else None

    def hidden(self, input_ids_BT: Tensor, **kwargs: Any) -> Tensor:
        """Last hidden states [B, T, D], as `SplitModel.hidden` has them."""
        weights = {name: _Narrow.apply(master, copy) for name, (master, copy) in self._products.items()}
        if self._embedding is None:
            return self._student.hidden(input_ids_BT, weights=weights, **kwargs)
        hook = self._embedding.register_forward_hook(_embedded)
        try:
            return self._student.hidden(input_ids_BT, weights=weights, **kwargs)
        finally:
            hook.remove()

    def head(self, hidden_XD: Tensor) -> Tensor:
        """Logits [..., V] over the shared vocabulary. Their backward pass adds to the gradient of the head's weight."""
        head, copy = self._head, self._head_copy
        if type(head) is not nn.Linear or type(copy) is not nn.Linear:
            return self._student.head(hidden_XD)
        return self._student.head(hidden_XD, lambda x_XD: _Project.apply(x_XD, head.bias, head.weight, copy.weight))

    @torch.no_grad()
    def agrees(self, dtype: torch.dtype) -> bool:
        """Whether states and logits of a few tokens are the student's own, to the last bit."""
        device = self._student.device
        probe_1T = torch.linspace(0, self._student.vocabulary_size - 1, 8, device=device).long()[None]
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            try:
                mine, own = self.hidden(probe_1T), self._student.hidden(probe_1T)
                return torch.equal(mine, own) and torch.equal(self.head(mine), self._student.head(own))
            except RuntimeError as error:  # a layer that multiplies its own weight with something in float32, say
                log.info("narrow weights: %s", error)
                return False


def trainee(student: SplitModel, sampler: SamplingCopy, *, dtype: torch.dtype) -> SplitModel | Trainee:
    """What to train `student` through: a `Trainee` where the student is split and it gives the same, else itself."""
    if not student.is_split:
        return student
    found = Trainee(student, sampler)
    if found.agrees(dtype):
        return found
    log.warning("%s is trained with copies of its weights", type(student.model).__name__)
    return student


def _pairs(student: SplitModel, sampler: SamplingCopy) -> dict[str, tuple[Tensor, Tensor]]:
    """Weights and biases of the body's products, by name: the student's, and the sampling copy's in the narrow type."""
    if sampler.lm is student:
        return {}
    body, copy = student.body, dict(sampler.lm.body.named_parameters())
    names = [
        f"{prefix}.{name}"
        for prefix, module in body.named_modules()
        if type(module) in _PRODUCTS
        for name, _ in module.named_parameters(recurse=False)
    ]
    return {name: (body.get_parameter(name), copy[name]) for name in names}


def _is_plain(embedding: Any) -> bool:
    return type(embedding) is nn.Embedding and embedding.max_norm is None and not embedding.scale_grad_by_freq


class _Narrow(torch.autograd.Function):
    """A weight's copy in the narrow type in the weight's place."""

    @staticmethod
    def forward(ctx: Any, master: Tensor, copy: Tensor) -> Tensor:
        ctx.dtype = master.dtype
        return copy.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0].to(ctx.dtype), None


class _Project(torch.autograd.Function):
    """A head whose backward pass adds the weight's gradient to `.grad` in blocks of classes."""

    @staticmethod
    def forward(ctx: Any, hidden_XD: Tensor, bias_V: Tensor | None, weight_VD: Tensor, copy_VD: Tensor) -> Tensor:
        ctx.weight_VD, ctx.hidden_dtype = weight_VD, hidden_XD.dtype
        hidden_XD = hidden_XD.to(copy_VD.dtype)
        ctx.save_for_backward(hidden_XD, copy_VD)
        return linear(hidden_XD, copy_VD, None if bias_V is None else bias_V.to(copy_VD.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        gradient_XV, (hidden_XD, copy_VD), weight_VD = gradients[0], ctx.saved_tensors, ctx.weight_VD
        if weight_VD.requires_grad:
            sum_VD, hidden_ND = _gradient_of(weight_VD), hidden_XD.flatten(0, -2)
            gradient_VN = gradient_XV.flatten(0, -2).T
            rows = max(1, _GRADIENT_BLOCK // hidden_ND.shape[-1])
            for start in range(0, len(gradient_VN), rows):
                sum_VD[start : start + rows] += gradient_VN[start : start + rows] @ hidden_ND
        bias_V = gradient_XV.flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        return (gradient_XV @ copy_VD).to(ctx.hidden_dtype), bias_V, None, None


class _Embed(torch.autograd.Function):
    """An embedding's result whose backward pass adds to the rows of `.grad` that were read."""

    @staticmethod
    def forward(ctx: Any, embedded_XD: Tensor, ids_X: Tensor, weight_VD: Tensor, padding_id: int | None) -> Tensor:
        ctx.weight_VD, ctx.ids_X, ctx.padding_id = weight_VD, ids_X, padding_id
        return embedded_XD.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None, None]:
        ids_N, gradient_ND = ctx.ids_X.flatten(), gradients[0].flatten(0, -2)
        if ctx.padding_id is not None:  # nn.Embedding never trains it
            gradient_ND = gradient_ND * (ids_N != ctx.padding_id)[:, None]
        sum_VD = _gradient_of(ctx.weight_VD)
        sum_VD.index_put_((ids_N,), gradient_ND.to(sum_VD.dtype), accumulate=True)
        return None, None, None, None


def _embedded(module: nn.Module, args: tuple[Any, ...], result: Tensor) -> Tensor:
    """A forward hook of `nn.Embedding`."""
    embedding: Any = module
    return _Embed.apply(result, args[0], embedding.weight, embedding.padding_idx)


def _gradient_of(weight: Tensor) -> Tensor:
    if weight.grad is None:
        weight.grad = torch.zeros_like(weight)
    return weight.grad
