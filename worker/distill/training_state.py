"""Everything a run needs to go on, as tensors in safetensors and plain values in JSON. Nothing is pickled.

Knows modules, optimizers and random number generators. Does not know steps, or where checkpoints are kept.

A *state* is a tree of dictionaries (keys are strings), lists, numbers, strings and None with tensors among its leaves.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

WEIGHTS = "weights.safetensors"
_TENSORS, _VALUES = "state.safetensors", "state.json"
_TENSOR = "<tensor>"  # stands where a tensor was; its name in the file is the path to it

State = dict[str, Any]


def trained_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The tensors that make the model what it is, each once: parameters, and buffers that are saved with it."""
    saved = model.state_dict().keys()
    return dict(model.named_parameters()) | {name: b for name, b in model.named_buffers() if name in saved}


@torch.no_grad()
def set_tensors(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copies into the model's own tensors, which optimizers and sampling copies hold."""
    own = trained_tensors(model)
    assert own.keys() == tensors.keys(), "the model is not the one that was saved"
    for name, tensor in own.items():
        tensor.copy_(tensors[name])


def optimizer_state(optimizer: torch.optim.Optimizer) -> State:
    state = optimizer.state_dict()
    return {"groups": state["param_groups"], "of": {str(i): values for i, values in state["state"].items()}}


def set_optimizer_state(optimizer: torch.optim.Optimizer, state: State) -> None:
    of = {int(i): values for i, values in state["of"].items()}
    optimizer.load_state_dict({"param_groups": state["groups"], "state": of})


def packed(python_state: tuple[Any, ...]) -> State:
    """What `random.Random.getstate` gives, as a state."""
    version, numbers, gauss = python_state
    return {"version": version, "numbers": list(numbers), "gauss": gauss}


def unpacked(state: State) -> tuple[Any, ...]:
    """What `random.Random.setstate` takes."""
    return state["version"], tuple(state["numbers"]), state["gauss"]


def random_state() -> State:
    """The process's own generators: Python's, NumPy's, and torch's on the CPU and on each accelerator."""
    kind, numbers, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "python": packed(random.getstate()),
        "numpy": [kind, np.asarray(numbers).tolist(), position, has_gauss, gauss],
        "torch": torch.get_rng_state(),
        "cuda": {str(i): state for i, state in enumerate(torch.cuda.get_rng_state_all())},
        "mps": torch.mps.get_rng_state() if torch.backends.mps.is_available() else None,
    }


def set_random_state(state: State) -> None:
    """Sets what this machine has; generators of accelerators that it lacks are left out."""
    random.setstate(unpacked(state["python"]))
    kind, numbers, *rest = state["numpy"]
    np.random.set_state((kind, np.array(numbers, dtype=np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    for i, generator in state["cuda"].items():
        if int(i) < torch.cuda.device_count():
            torch.cuda.set_rng_state(generator, int(i))
    if state["mps"] is not None and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"])


def size_of(state: Any) -> int:
    """About how many bytes `write_state` will write, rather more than fewer."""
    if isinstance(state, Tensor):
        return state.numel() * state.element_size() + 200  # its entry in the header
    if isinstance(state, Mapping):
        return sum(len(key) + 6 + size_of(value) for key, value in state.items())
    if isinstance(state, list | tuple):
        return sum(map(size_of, state)) + 2
    return len(str(state)) + 4


def write_state(folder: Path, *, weights: Mapping[str, Tensor], state: State) -> None:
    """Writes into an existing folder. Raises OSError or SafetensorError when that fails."""
    tensors: dict[str, Tensor] = {}
    values = _without_tensors(state, (), tensors)
    save_file({name: _plain(tensor) for name, tensor in weights.items()}, folder / WEIGHTS)
    save_file({name: _plain(tensor) for name, tensor in tensors.items()}, folder / _TENSORS)
    (folder / _VALUES).write_text(json.dumps(values), encoding="utf-8")


def read_weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / WEIGHTS)


def read_state(folder: Path) -> State:
    """What `write_state` wrote; tuples come back as lists. Tensors are on the CPU."""
    values = json.loads((folder / _VALUES).read_text(encoding="utf-8"))
    return _with_tensors(values, (), load_file(folder / _TENSORS))


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous()


def _without_tensors(value: Any, path: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    """`value` with its tensors moved into `tensors`."""
    if isinstance(value, Tensor):
        tensors["/".join(path)] = value
        return _TENSOR
    if isinstance(value, Mapping):
        return {key: _without_tensors(inner, (*path, key), tensors) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_tensors(inner, (*path, str(i)), tensors) for i, inner in enumerate(value)]
    return value


def _with_tensors(value: Any, path: tuple[str, ...], tensors: Mapping[str, Tensor]) -> Any:
    if value == _TENSOR:
        return tensors["/".join(path)]
    if isinstance(value, dict):
        return {key: _with_tensors(inner, (*path, key), tensors) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_tensors(inner, (*path, str(i)), tensors) for i, inner in enumerate(value)]
    return value
