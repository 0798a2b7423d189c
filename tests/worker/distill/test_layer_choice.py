"""Which layers are kept, against counting and against really taking a layer out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from app.core.errors import TooManyLayers
from tests.tiny_models import make_tiny_model
from worker.distill.layer_choice import CALIBRATION_TEXT, change_without, decoder_layers, kept_layers
from worker.distill.models import load_model, load_tokenizer

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("deep"), layers=7, seed=4, context=64)


@pytest.mark.parametrize(
    ("count", "choice", "expected"),
    [
        (3, "first", [0, 1, 2]),
        (3, "even", [0, 3, 6]),
        (4, "even", [0, 2, 4, 6]),
        (1, "even", [0]),
        (7, "least_change", [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_counted_choices(deep: Path, count: int, choice: str, expected: list[int]) -> None:
    teacher = load_model(str(deep), device=CPU)
    assert kept_layers(teacher, load_tokenizer(str(deep)), count=count, choice=choice) == expected


@pytest.mark.parametrize("choice", ["least_change", "even", "first"])
def test_any_count_gives_so_many_distinct_layers(deep: Path, choice: str) -> None:
    teacher, tokenizer = load_model(str(deep), device=CPU), load_tokenizer(str(deep))
    for count in range(1, 8):
        keep = kept_layers(teacher, tokenizer, count=count, choice=choice)
        assert len(keep) == count
        assert keep == sorted(set(keep))
    with pytest.raises(TooManyLayers, match=r"8 layers.*has 7"):
        kept_layers(teacher, tokenizer, count=8, choice=choice)


def test_least_change_drops_the_layers_that_matter_least(deep: Path) -> None:
    teacher, tokenizer = load_model(str(deep), device=CPU), load_tokenizer(str(deep))
    ids = tokenizer(CALIBRATION_TEXT, return_tensors="pt").input_ids[:, :64]  # the context ends there
    with torch.no_grad():
        log_p = teacher(input_ids=ids).logits[0].log_softmax(-1)
    owner, name, layers = decoder_layers(teacher)
    expected = []
    for i in range(7):
        setattr(owner, name, nn.ModuleList([layer for k, layer in enumerate(layers) if k != i]))
        with torch.no_grad():
            log_q = teacher(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
        expected.append(float((log_p.exp() * (log_p - log_q)).sum(-1).mean()))
    setattr(owner, name, layers)
    assert change_without(teacher, tokenizer) == pytest.approx(expected, rel=1e-3)
    worst = sorted(range(7), key=lambda i: -expected[i])
    assert kept_layers(teacher, tokenizer, count=3, choice="least_change") == sorted(worst[:3])
    with torch.no_grad():  # nothing of the measuring stays behind
        assert torch.equal(teacher(input_ids=ids).logits[0].log_softmax(-1), log_p)
