"""What OpenAI's clients send becomes a comparison, and what no model here obeys is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from app.chat_shapes import ChatIn, chunk, usage_of
from app.core.compare_schemas import Answer, ComparisonIn


def request(**fields: Any) -> ChatIn:
    return ChatIn.model_validate({"model": "mdl_1", "messages": [{"role": "user", "content": "hi"}]} | fields)


def test_a_conversation_becomes_a_comparison_of_one_model() -> None:
    body = request(
        messages=[
            {"role": "developer", "content": "Be short."},
            {"role": "user", "content": [{"type": "text", "text": "How "}, {"type": "text", "text": "are you?"}]},
            {"role": "assistant", "content": "Well."},
            {"role": "user", "content": "Why?"},
        ],
        temperature=0.5,
        top_p=0.9,
        seed=7,
        max_tokens=12,
    ).as_comparison()
    assert [tuple(message.values()) for message in body["messages"]] == [
        ("system", "Be short."),
        ("user", "How are you?"),
        ("assistant", "Well."),
        ("user", "Why?"),
    ]
    asked = ComparisonIn.model_validate(body)
    assert (asked.model_ids, asked.seed, asked.temperature, asked.top_p) == (["mdl_1"], 7, 0.5, 0.9)
    assert asked.max_new_tokens == 12


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [({}, 256), ({"max_tokens": 5}, 5), ({"max_tokens": 5, "max_completion_tokens": 9}, 9)],
)
def test_the_newer_name_of_the_length_wins(fields: dict[str, int], tokens: int) -> None:
    assert request(**fields).as_comparison()["max_new_tokens"] == tokens


def test_without_a_seed_each_request_has_its_own() -> None:
    assert len({request().as_comparison()["seed"] for _ in range(8)}) == 8


@pytest.mark.parametrize(
    "field", [{"n": 2}, {"logprobs": True}, {"tools": []}, {"stop": ["."]}, {"temperature": 2.5}, {"messages": []}]
)
def test_what_would_be_ignored_is_refused_by_name(field: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        request(**field)
    assert [error["loc"][0] for error in refused.value.errors()] == list(field)


def test_what_changes_nothing_is_accepted() -> None:
    assert request(user="u", metadata={"a": 1}, store=True).as_comparison()["model_ids"] == ["mdl_1"]


@pytest.mark.parametrize(("options", "wants"), [(None, False), ({}, False), ({"include_usage": True}, True)])
def test_a_stream_counts_when_it_is_asked_to(options: dict[str, bool] | None, wants: bool) -> None:
    assert request(stream=True, stream_options=options).wants_usage is wants


def test_usage_adds_up() -> None:
    numbers = {"seconds": 1.0, "tokens_per_s": 3.0, "finished": True, "parameters": 1, "weights_sha256": "ab"}
    usage = usage_of(Answer(model_id="m", text="x", tokens=3, prompt_tokens=4, **numbers))
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (4, 3, 7)


def test_a_chunk_has_the_shared_head_and_one_choice() -> None:
    piece = chunk({"id": "c"}, {"content": "x"}, finish="stop")
    assert piece == {
        "id": "c",
        "choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop", "logprobs": None}],
    }
