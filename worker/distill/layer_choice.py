"""Which of a teacher's layers a student keeps.

Knows one model and a short text of its own, so that the choice depends on the teacher alone and a student can be
built again without its data. Does not build students.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from app.core.errors import ModelUnreadable, TooManyLayers

# A little of everything that chat models are asked for; what it says does not matter.
CALIBRATION_TEXT = """\
Question: Which tools do I need to hang a shelf? Answer: A drill, a spirit level, wall plugs and four screws.
Dear Ms Okafor, thank you for your order of 24 May. The parcel left our warehouse today and should reach you by Friday.
def area(width, height):
    return width * height
A train covers 180 km in 2 hours, so its speed is 180 / 2 = 90 km per hour.
Steps: 1. Rinse the rice. 2. Bring two cups of water to the boil. 3. Simmer for twelve minutes and let it rest.
The harbour was quiet. Gulls walked along the pier as if they owned it, and far out a small boat turned for home.
SELECT name, city FROM customers WHERE joined >= '2024-01-01' ORDER BY name;
A cell is the smallest living unit of a plant or an animal; some living things consist of a single one.
"""


def decoder_layers(model: PreTrainedModel) -> tuple[nn.Module, str, nn.ModuleList]:
    """The module that owns the decoder layers, their attribute name, and the list itself."""
    total = model.config.get_text_config().num_hidden_layers
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.ModuleList) and len(child) == total:
                return module, name, child
    raise ModelUnreadable(
        f"{type(model).__name__} has no list of {total} layers to choose from; use a student of kind 'checkpoint'",
        "student.kind",
    )


def kept_layers(teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, count: int, choice: str) -> list[int]:
    """Indices of the `count` teacher layers that a student keeps, ascending. Raises TooManyLayers.

    least_change: those without which the teacher's predictions change most (see `change_without`); even: spread over
    the depth, first and last kept; first: the lowest ones.
    """
    _, _, layers = decoder_layers(teacher)
    total = len(layers)
    if count > total:
        raise TooManyLayers(
            f"the student asks for {count} layers, the teacher has {total}; ask for {total} or fewer", "student.layers"
        )
    if choice == "first" or count == 1:
        return list(range(count))
    if choice == "even" or count == total:
        return [round(i * (total - 1) / (count - 1)) for i in range(count)]
    change = change_without(teacher, tokenizer)
    return sorted(sorted(range(total), key=lambda i: -change[i])[:count])


@torch.no_grad()
def change_without(teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[float]:
    """KL(teacher || teacher without layer i), in nats per token of a short text, for every layer i.

    Layers are judged one at a time, as in ShortGPT (Men et al., 2024), but by what comes out at the end rather than
    by how far a layer turns its input: in a small model some layers turn little and matter much.
    """
    _, _, layers = decoder_layers(teacher)
    text_ids = tokenizer(CALIBRATION_TEXT, return_tensors="pt").input_ids
    limit = min(text_ids.shape[1], teacher.config.get_text_config().max_position_embeddings)
    ids_1T = text_ids[:, :limit].to(teacher.device)
    log_p_TV = _log_probs(teacher, ids_1T)
    changes = []
    for layer in layers:
        with _skipped(layer):
            log_q_TV = _log_probs(teacher, ids_1T)
        changes.append(float((log_p_TV.exp() * (log_p_TV - log_q_TV)).sum(-1).mean()))
    return changes


def _log_probs(model: PreTrainedModel, ids_1T: Tensor) -> Tensor:
    return model(input_ids=ids_1T, use_cache=False).logits[0].float().log_softmax(-1)


@contextmanager
def _skipped(layer: nn.Module) -> Iterator[None]:
    """The layer hands its input on. A hook, since taking it out of the list would shift its neighbours' numbers."""

    def pass_through(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        hidden_states = args[0] if args else kwargs["hidden_states"]
        return (hidden_states, *output[1:]) if isinstance(output, tuple) else hidden_states

    handle = layer.register_forward_hook(pass_through, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
