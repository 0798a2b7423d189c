"""Sampling: the distribution, EOS, lengths, and the states that predict each token."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.worker.distill.conftest import PROMPTS
from worker.distill.generate import SamplingSettings, draw, next_tokens, pad_left, sample
from worker.distill.models import SplitModel


def test_draw_inverts_the_cumulative_distribution() -> None:
    probabilities_BV = torch.tensor([[0.2, 0.0, 0.5, 0.3]]).expand(6, 4)
    uniform_B = torch.tensor([0.0, 0.19, 0.2, 0.69, 0.71, 0.999])
    assert draw(probabilities_BV, uniform_B).tolist() == [0, 0, 2, 2, 3, 3]  # a class of probability 0 never comes


def test_draws_follow_the_probabilities() -> None:
    logits_BV = torch.log(torch.tensor([[0.1, 0.6, 0.3]])).expand(20_000, 3)
    settings = SamplingSettings(max_new_tokens=1, temperature=1, top_p=1, eos_ids=frozenset(), pad_id=0)
    uniform_B = torch.rand(20_000, generator=torch.Generator().manual_seed(1))
    share = next_tokens(logits_BV, settings=settings, uniform_A=uniform_B).bincount(minlength=3) / 20_000
    torch.testing.assert_close(share, torch.tensor([0.1, 0.6, 0.3]), atol=0.015, rtol=0)
    share = next_tokens(logits_BV, settings=replace(settings, top_p=0.85), uniform_A=uniform_B).bincount(minlength=3)
    assert share[0] == 0  # 0.6 + 0.3 crosses 0.85
    share = next_tokens(logits_BV, settings=replace(settings, temperature=0), uniform_A=uniform_B).bincount(minlength=3)
    assert share.tolist() == [0, 20_000, 0]


def test_pad_left_masks_by_length_even_where_pad_is_a_word() -> None:
    tokens_BT, visible_BT = pad_left([(7, 0, 7), (0,)], pad_id=0, device=torch.device("cpu"))
    assert tokens_BT.tolist() == [[7, 0, 7], [0, 0, 0]]
    assert visible_BT.tolist() == [[True, True, True], [False, False, True]]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_batched_sampling_equals_one_row_at_a_time_without_cache(
    student_lm: SplitModel, settings: SamplingSettings, temperature: float
) -> None:
    settings = replace(settings, temperature=temperature)
    state = sample(student_lm, PROMPTS, settings=settings, generator=torch.Generator().manual_seed(3))
    uniform_BT = torch.rand(len(PROMPTS), settings.max_new_tokens, generator=torch.Generator().manual_seed(3))
    rows = [list(prompt) for prompt in PROMPTS]
    going = [True] * len(rows)
    for t in range(settings.max_new_tokens):
        if not any(going):
            break
        with torch.no_grad():
            logits = [student_lm.model(input_ids=torch.tensor([row])).logits[0, -1] for row in rows]
        new = next_tokens(torch.stack(logits), settings=settings, uniform_A=uniform_BT[:, t]).tolist()
        for b, token in enumerate(new):
            if going[b]:
                rows[b].append(token)
                going[b] = token not in settings.eos_ids
    assert state.responses() == [tuple(row[len(p) :]) for row, p in zip(rows, PROMPTS, strict=True)]


def test_states_predict_their_tokens_and_eos_ends_a_row(student_lm: SplitModel, settings: SamplingSettings) -> None:
    settings = replace(settings, eos_ids=frozenset(range(3, 60)))
    state = sample(student_lm, PROMPTS, settings=settings, generator=torch.Generator().manual_seed(5))
    lengths = set()
    for b, (prompt, response) in enumerate(zip(PROMPTS, state.responses(), strict=True)):
        ended = [i for i, token in enumerate(response) if token in settings.eos_ids]
        assert ended == ([len(response) - 1] if len(response) < settings.max_new_tokens else ended[-1:])
        with torch.no_grad():
            hidden_TD = student_lm.hidden(torch.tensor([[*prompt, *response]]))[0]
        start = len(prompt) - 1
        torch.testing.assert_close(
            state.hidden_BTD[b, : len(response)], hidden_TD[start : start + len(response)], atol=2e-4, rtol=1e-3
        )
        lengths.add(len(response))
    assert len(lengths) > 1  # rows really end at different steps
    assert sample(
        student_lm, PROMPTS, settings=replace(settings, ignore_eos=True), generator=torch.Generator().manual_seed(5)
    ).length_B.tolist() == [settings.max_new_tokens] * len(PROMPTS)
