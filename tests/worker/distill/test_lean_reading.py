"""The lean reading of whole sequences gives the states of the model's own pass, and falls back to it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.worker.distill.conftest import CPU, PROMPTS
from tests.worker.distill.test_lean import MODELS, tiny
from worker.distill.evaluate import response_states
from worker.distill.lean import LeanBody
from worker.distill.lean_reading import read_responses
from worker.distill.models import SplitModel, load_model
from worker.distill.types import Batch, TokenSequence, make_batch

RESPONSES = [(5, 6, 7, 2), (8,), (), (9, 10, 11, 12, 13, 2)]


def batch_of(rows: slice = slice(None)) -> Batch:
    pairs = zip(PROMPTS[rows], RESPONSES[rows], strict=True)
    return make_batch([TokenSequence(prompt, response, True) for prompt, response in pairs], pad_id=0)


@pytest.mark.parametrize("rows", [slice(None), slice(1), slice(2, 3)], ids=["padded", "one row", "no response"])
@pytest.mark.parametrize("frozen", [True, False], ids=["packed", "trained"])
@pytest.mark.parametrize("name", MODELS)
def test_states_are_those_of_the_models_own_pass(name: str, frozen: bool, rows: slice) -> None:
    lm = SplitModel(tiny(name).requires_grad_(not frozen), vocabulary_size=320)
    assert lm.lean is not None
    batch = batch_of(rows)
    read_ND = read_responses(lm, batch)
    assert not read_ND.requires_grad
    torch.testing.assert_close(read_ND, response_states(lm, batch).detach(), rtol=1e-4, atol=1e-4)


def test_a_model_without_a_lean_pass_is_read_by_its_own(gemma_folder: object) -> None:
    lm = SplitModel(load_model(str(gemma_folder), device=CPU), vocabulary_size=320)
    assert lm.lean is None
    assert torch.equal(read_responses(lm, batch_of()), response_states(lm, batch_of()))


def test_only_real_tokens_are_computed_and_only_wanted_ones_to_the_end(
    teacher_lm: SplitModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts of tokens, so that no later change quietly brings the padding back."""
    lean = teacher_lm.lean
    assert lean is not None
    tokens: list[int] = []
    body = LeanBody.__call__

    def counted(self: LeanBody, tokens_N: Tensor, *args: object, **kwargs: object) -> Tensor:
        tokens.append(len(tokens_N))
        return body(self, tokens_N, *args, **kwargs)  # type: ignore[arg-type]

    last: list[int] = []
    down = lean.layers[-1].down
    monkeypatch.setattr(LeanBody, "__call__", counted)
    monkeypatch.setattr(type(down), "__call__", _noting(type(down), last))
    read_responses(teacher_lm, batch_of())
    assert tokens == [sum(map(len, PROMPTS)) + sum(map(len, RESPONSES))]
    assert last[-1] == sum(map(len, RESPONSES))


def _noting(projection: type, seen: list[int]) -> object:
    original = projection.__call__

    def noting(self: object, x_ND: Tensor) -> Tensor:
        seen.append(len(x_ND))
        return original(self, x_ND)

    return noting
