"""SCRG against a plain, slow re-implementation: one row at a time, no cache, no masks, token for token."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from app.core.job_config import ScrgConfig
from tests.worker.distill.conftest import PROMPTS
from worker.distill.generate import Rollouts, SamplingSettings, draw, next_tokens, sample
from worker.distill.models import SplitModel
from worker.distill.scrg import choose, read_with_teacher, revise, score

EOS = {2, *range(30, 45)}  # many, so that corrections to EOS and early ends really happen
Responses = list[tuple[int, ...]]


def logits_of(lm: SplitModel, ids: tuple[int, ...]) -> torch.Tensor:
    """[T, V] by one whole forward pass of the plain model."""
    with torch.no_grad():
        return lm.model(input_ids=torch.tensor([ids])).logits[0]


def slow_revise(
    teacher: SplitModel,
    student: SplitModel,
    responses: Responses,
    *,
    config: ScrgConfig,
    settings: SamplingSettings,
    generator: torch.Generator,
) -> tuple[Responses, list[list[int | None]]]:
    """The algorithm as it is written down. Random numbers are drawn in the engine's order: one per response token
    for the teacher's draws, if it draws, then one per row and position."""
    responses = list(responses)
    first_allowed = [0] * len(responses)
    history = []
    for _ in range(config.rounds):
        tokens = sum(map(len, responses)) if config.teacher_token == "sample" else 0
        uniforms = iter(torch.rand(tokens, generator=generator))
        places: list[int | None] = []
        for b, (prompt, response) in enumerate(zip(PROMPTS, responses, strict=True)):
            log_p = logits_of(teacher, prompt + response).log_softmax(-1)
            log_q = logits_of(student, prompt + response).log_softmax(-1)
            best: tuple[float, int, int] | None = None
            for i, token in enumerate(response):
                at = len(prompt) + i - 1
                p, q = log_p[at].exp(), log_q[at].exp()
                drawn = int(draw(p[None], next(uniforms)[None])) if tokens else int(p.argmax())
                if config.kl_direction == "teacher_student":
                    kl = float((p * (log_p[at] - log_q[at])).sum())
                else:
                    kl = float((q * (log_q[at] - log_p[at])).sum())
                candidate = drawn != token and (i >= first_allowed[b] or config.later_rounds == "anywhere")
                if config.eos_correction == "skip" and drawn in settings.eos_ids:
                    candidate = False
                rank = kl if config.position == "largest_kl" else -float(i)
                if candidate and (best is None or rank > best[0]):
                    best = (rank, i, drawn)
            places.append(best[1] if best else None)
            if best:
                responses[b] = (*response[: best[1]], best[2])
                first_allowed[b] = best[1] + 1
        history.append(places)
        if not any(place is not None for place in places):
            break
        going = [
            place is not None
            and responses[b][-1] not in settings.eos_ids
            and len(responses[b]) < settings.max_new_tokens
            for b, place in enumerate(places)
        ]
        uniform_BT = torch.rand(len(responses), settings.max_new_tokens, generator=generator)
        while any(going):
            last = torch.stack([logits_of(student, p + r)[-1] for p, r in zip(PROMPTS, responses, strict=True)])
            place = torch.tensor([min(len(r), settings.max_new_tokens - 1) for r in responses])[:, None]
            uniform_B = uniform_BT.gather(1, place).squeeze(1)
            for b, token in enumerate(next_tokens(last, settings=settings, uniform_A=uniform_B).tolist()):
                if going[b]:
                    responses[b] = (*responses[b], token)
                    going[b] = token not in settings.eos_ids and len(responses[b]) < settings.max_new_tokens
    return responses, history


def start(student: SplitModel, settings: SamplingSettings, seed: int) -> Rollouts:
    return sample(student, PROMPTS, settings=settings, generator=torch.Generator().manual_seed(seed))


ALTERNATIVES = {
    "teacher_token": "greedy",
    "position": "first",
    "kl_direction": "student_teacher",
    "eos_correction": "skip",
    "later_rounds": "anywhere",
}
SWITCHES = [{}, *({name: value} for name, value in ALTERNATIVES.items()), ALTERNATIVES]


@pytest.mark.parametrize("way", ["lean", "plain", "prefill again"])
@pytest.mark.parametrize("switches", SWITCHES, ids=lambda s: "-".join(s.values()) or "default")
def test_equals_the_slow_way_token_for_token(
    request: pytest.FixtureRequest, settings: SamplingSettings, switches: dict[str, str], way: str
) -> None:
    kind = "plain_" if way == "plain" else ""
    teacher_lm, student_lm = (request.getfixturevalue(f"{kind}{name}_lm") for name in ("teacher", "student"))
    settings = replace(settings, eos_ids=frozenset(EOS), reuse_cache=way != "prefill again")
    config = ScrgConfig(rounds=3, **switches)
    changed = 0
    for seed in range(2):
        state = start(student_lm, settings, seed)
        before = state.responses()
        expected, history = slow_revise(
            teacher_lm,
            student_lm,
            before,
            config=config,
            settings=settings,
            generator=torch.Generator().manual_seed(50 + seed),
        )
        reading, outcomes = revise(
            teacher_lm,
            student_lm,
            state,
            config=config,
            settings=settings,
            generator=torch.Generator().manual_seed(50 + seed),
        )
        assert state.responses() == expected
        found = [
            [j if done else None for j, done in zip(o.position_B.tolist(), o.corrected_B.tolist(), strict=True)]
            for o in outcomes
        ]
        assert found == history
        changed += before != expected
        _assert_states_are_those_of_a_fresh_pass(teacher_lm, student_lm, state, reading.hidden_BTD)
    assert changed == 2


def _assert_states_are_those_of_a_fresh_pass(
    teacher: SplitModel, student: SplitModel, state: Rollouts, teacher_hidden_BTD: torch.Tensor
) -> None:
    for b, (prompt, response) in enumerate(zip(PROMPTS, state.responses(), strict=True)):
        for lm, hidden_BTD in ((teacher, teacher_hidden_BTD), (student, state.hidden_BTD)):
            with torch.no_grad():
                fresh_TD = lm.hidden(torch.tensor([[*prompt, *response]]))[0, len(prompt) - 1 : -1]
            torch.testing.assert_close(hidden_BTD[b, : len(response)], fresh_TD, atol=5e-4, rtol=1e-3)


@pytest.mark.parametrize("lean", [True, False])
def test_one_round_computes_each_new_token_once(
    request: pytest.FixtureRequest, settings: SamplingSettings, lean: bool
) -> None:
    """Counts, not times: no second prefill, no second teacher pass over what is left of the correction; and the lean
    pass computes neither padding nor rows that have nothing to say."""
    kind = "" if lean else "plain_"
    teacher_lm, student_lm = (request.getfixturevalue(f"{kind}{name}_lm") for name in ("teacher", "student"))
    settings = replace(settings, ignore_eos=True)
    state = start(student_lm, settings, 1)
    sampled = state.decoder.tokens_computed
    reading, outcomes = revise(
        teacher_lm,
        student_lm,
        state,
        config=ScrgConfig(rounds=1),
        settings=settings,
        generator=torch.Generator().manual_seed(9),
    )
    rows, new = len(PROMPTS), settings.max_new_tokens - 1
    tails = settings.max_new_tokens - 1 - outcomes[0].position_B[outcomes[0].corrected_B]
    assert len(set(tails.tolist())) > 1
    prompts = sum(map(len, PROMPTS)) if lean else rows * max(map(len, PROMPTS))
    tail = int(tails.sum()) if lean else rows * int(tails.max())
    assert sampled == prompts + rows * new
    assert state.decoder.tokens_computed - sampled == tail
    assert reading.decoder.tokens_computed == prompts + rows * new + tail


def test_equal_models_with_greedy_tokens_have_no_mismatch(teacher_lm: SplitModel, settings: SamplingSettings) -> None:
    settings = replace(settings, temperature=0)
    state = start(teacher_lm, settings, 0)
    before = state.responses()
    _, outcomes = revise(
        teacher_lm,
        teacher_lm,
        state,
        config=ScrgConfig(rounds=5, teacher_token="greedy"),
        settings=settings,
        generator=torch.Generator(),
    )
    assert len(outcomes) == 1
    assert not outcomes[0].corrected_B.any()
    assert state.responses() == before


def test_rounds_zero_only_reads(teacher_lm: SplitModel, student_lm: SplitModel, settings: SamplingSettings) -> None:
    state = start(student_lm, settings, 0)
    before = state.responses()
    reading, outcomes = revise(
        teacher_lm, student_lm, state, config=ScrgConfig(rounds=0), settings=settings, generator=torch.Generator()
    )
    assert (outcomes, state.responses()) == ([], before)
    _assert_states_are_those_of_a_fresh_pass(teacher_lm, student_lm, state, reading.hidden_BTD)


def test_random_position_is_a_mismatch_and_not_always_the_worst(
    teacher_lm: SplitModel, student_lm: SplitModel, settings: SamplingSettings
) -> None:
    state = start(student_lm, settings, 2)
    config = ScrgConfig(position="random")
    generator = torch.Generator().manual_seed(0)
    reading = read_with_teacher(teacher_lm, state, settings=settings)
    token_BT, kl_BT = score(teacher_lm, student_lm, reading, state, config=config, generator=generator)
    chosen = set()
    for _ in range(30):
        position_B, found_B = choose(
            state,
            token_BT,
            kl_BT,
            torch.zeros(len(PROMPTS), dtype=torch.long),
            config=config,
            eos_ids=settings.eos_ids,
            generator=generator,
        )
        for b, j in enumerate(position_B.tolist()):
            if found_B[b]:
                assert state.tokens_BT[b, j] != token_BT[b, j]
                assert j < state.length_B[b]
        chosen.add(int(position_B[0]))
    assert len(chosen) > 2


def test_scoring_in_slices_changes_nothing(
    teacher_lm: SplitModel, student_lm: SplitModel, settings: SamplingSettings
) -> None:
    state = start(student_lm, settings, 4)
    reading = read_with_teacher(teacher_lm, state, settings=settings)
    (token_BT, kl_BT), (sliced_token_BT, sliced_kl_BT) = (
        score(
            teacher_lm,
            student_lm,
            reading,
            state,
            config=ScrgConfig(),
            generator=torch.Generator().manual_seed(1),
            max_logits=max_logits,
        )
        for max_logits in (2**25, 320 * 3)
    )
    assert torch.equal(token_BT, sliced_token_BT)
    torch.testing.assert_close(kl_BT, sliced_kl_BT)
