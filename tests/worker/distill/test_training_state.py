"""State comes back as it was, bit for bit, and no file of it can run code."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import torch
from torch import nn

from worker.distill.models import SplitModel
from worker.distill.training_state import (
    optimizer_state,
    packed,
    random_state,
    read_state,
    read_weights,
    set_optimizer_state,
    set_random_state,
    set_tensors,
    size_of,
    trained_tensors,
    unpacked,
    write_state,
)


def test_values_and_tensors_come_back(tmp_path: Path) -> None:
    state = {
        "a": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).T,  # not contiguous
        "deep": [{"x": torch.tensor(1e-45)}, (1, 2), None, "<text>", 0.1 + 0.2, 2**70, float("inf")],
        "empty": torch.zeros(0, 3),
        "flags": {"on": True},
    }
    weights = {"w": torch.tensor([torch.pi, -0.0, torch.inf])}
    write_state(tmp_path, weights=weights, state=state)
    back = read_state(tmp_path)
    assert torch.equal(back["a"], state["a"])
    assert back["a"].dtype == torch.bfloat16
    assert float(back["deep"][0]["x"]) == float(torch.tensor(1e-45))
    assert back["deep"][1:] == [[1, 2], None, "<text>", 0.1 + 0.2, 2**70, float("inf")]
    assert back["empty"].shape == (0, 3)
    assert back["flags"] == {"on": True}
    assert torch.equal(read_weights(tmp_path)["w"].view(torch.int32), weights["w"].view(torch.int32))
    written = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert written <= size_of(weights) + size_of(state) + 200
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors", ".json"}


def test_random_numbers_go_on_as_they_would_have() -> None:
    def numbers() -> list[float]:
        return [random.gauss(0, 1), np.random.standard_normal(), float(torch.randn(()))]

    random.gauss(0, 1)  # Python and NumPy hold a second normal number back
    np.random.standard_normal()
    state = json.loads(json.dumps({k: v for k, v in random_state().items() if k in ("python", "numpy")}))
    state |= {k: v for k, v in random_state().items() if k not in ("python", "numpy")}
    expected = [numbers() for _ in range(3)]
    set_random_state(state)
    assert [numbers() for _ in range(3)] == expected


def test_one_generator_of_pythons() -> None:
    one, other = random.Random(3), random.Random(4)
    one.gauss(0, 1)
    other.setstate(unpacked(json.loads(json.dumps(packed(one.getstate())))))
    assert [one.gauss(0, 1) for _ in range(3)] == [other.gauss(0, 1) for _ in range(3)]


def test_tied_weights_are_kept_once_and_stay_tied(teacher_lm: SplitModel, tmp_path: Path) -> None:
    model = teacher_lm.model
    tensors = trained_tensors(model)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert len({tensor.data_ptr() for tensor in tensors.values()}) == len(tensors)
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    write_state(tmp_path, weights=tensors, state={})
    try:
        with torch.no_grad():
            for tensor in tensors.values():
                tensor.zero_()
        set_tensors(model, read_weights(tmp_path))
        assert all(torch.equal(tensor, before[name]) for name, tensor in trained_tensors(model).items())
        assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    finally:
        set_tensors(model, before)


def test_buffers_that_are_saved_are_trained_tensors() -> None:
    module = nn.BatchNorm1d(2)
    module.register_buffer("scratch", torch.zeros(1), persistent=False)
    assert set(trained_tensors(module)) == {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}


def test_an_optimizer_goes_on_as_it_would_have(tmp_path: Path) -> None:
    def make() -> tuple[nn.Linear, torch.optim.AdamW]:
        torch.manual_seed(1)
        layer = nn.Linear(3, 2)
        return layer, torch.optim.AdamW([{"params": [layer.weight]}, {"params": [layer.bias], "lr": 0.1}], fused=True)

    def step(layer: nn.Linear, optimizer: torch.optim.AdamW) -> None:
        layer(torch.ones(1, 3)).square().sum().backward()
        optimizer.step()

    (one, its), (other, others) = make(), make()
    step(one, its)
    write_state(tmp_path, weights=trained_tensors(one), state=optimizer_state(its))
    set_tensors(other, read_weights(tmp_path))
    set_optimizer_state(others, read_state(tmp_path))
    other.zero_grad()
    one.zero_grad()
    for _ in range(3):
        step(one, its)
        step(other, others)
    assert torch.equal(one.weight, other.weight)
    assert torch.equal(one.bias, other.bias)
