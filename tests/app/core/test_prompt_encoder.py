"""Templates, the token that ends a response, and lengths."""

from __future__ import annotations

import pytest

from app.core.errors import NoChatTemplate
from app.core.prompt_encoder import PromptEncoder
from tests.tiny_models import make_tokenizer

EOS = 2


@pytest.fixture
def encoder() -> PromptEncoder:
    return PromptEncoder(make_tokenizer(), template="chat", eos_ids=frozenset({EOS}))


def test_the_end_of_a_turn_may_be_another_id_than_eos() -> None:
    tokenizer = make_tokenizer(extra_tokens=["<turn_end>"])
    turn_end = tokenizer.convert_tokens_to_ids("<turn_end>")
    tokenizer.chat_template = tokenizer.chat_template.replace("<|im_end|>", "<turn_end>")
    encoder = PromptEncoder(tokenizer, template="chat", eos_ids=frozenset({EOS, turn_end}))
    assert encoder.end_id == turn_end


def test_a_pad_token_that_is_also_eos_still_ends_responses() -> None:
    tokenizer = make_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    encoder = PromptEncoder(tokenizer, template="chat", eos_ids=frozenset({EOS}))
    assert encoder.response("the", max_tokens=9)[-1] == EOS


def test_alpaca_and_plain_templates() -> None:
    tokenizer = make_tokenizer(chat_template=None)
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "the dog"}]
    texts = {
        template: tokenizer.decode(
            PromptEncoder(tokenizer, template=template, eos_ids=frozenset({EOS})).prompt(messages)
        )
        for template in ("alpaca", "plain")
    }
    assert texts == {
        "alpaca": "Be kind.\n\n### Instruction:\nthe dog\n\n### Response:\n",
        "plain": "Be kind.\nthe dog\n",
    }


def test_chat_without_a_template_names_the_setting() -> None:
    with pytest.raises(NoChatTemplate, match=r"data\.template.*alpaca"):
        PromptEncoder(make_tokenizer(chat_template=None), template="chat", eos_ids=frozenset({EOS}))


def test_long_responses_are_cut_and_then_have_no_end(encoder: PromptEncoder) -> None:
    assert len(encoder.response("the small brown dog sees birds", max_tokens=3)) == 3
    assert EOS not in encoder.response("the small brown dog sees birds", max_tokens=3)
