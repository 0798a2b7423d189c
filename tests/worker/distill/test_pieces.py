"""Pieces join to the exact text, whatever the bytes; a candidate alone is always readable."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiny_models import make_tokenizer
from worker.distill.pieces import _from_prefixes, _stripped, label, pieces, spelling

TOKENIZER = make_tokenizer()
TEXTS = [
    "the small brown dog",
    "  led and trailed by spaces \n",
    "🦙 and 👩‍👩‍👧 and é",
    "מימין לשמאל ואז left again ‮mirrored",
    "<script>alert(1)</script> [a](javascript:b)",
    "",
]


def whole(token_ids: list[int]) -> str:
    return TOKENIZER.decode(token_ids, skip_special_tokens=True).strip()


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_of_a_text_join_to_it(text: str) -> None:
    token_ids = [*TOKENIZER(text, add_special_tokens=False).input_ids, TOKENIZER.eos_token_id]
    cut = pieces(TOKENIZER, token_ids, whole(token_ids))
    assert len(cut) == len(token_ids)
    assert "".join(cut) == text.strip() == whole(token_ids)
    assert cut[-1] == ""  # the end of text is a token without text


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, len(TOKENIZER) - 1), max_size=24))
def test_pieces_of_any_ids_join_to_the_decoded_answer(token_ids: list[int]) -> None:
    """A model may well write half a character, or a lone continuation byte."""
    cut = pieces(TOKENIZER, token_ids, whole(token_ids))
    assert len(cut) == len(token_ids)
    assert "".join(cut) == whole(token_ids)


@pytest.mark.parametrize("text", TEXTS)
def test_the_fast_way_is_the_plain_way(text: str) -> None:
    token_ids = TOKENIZER(text, add_special_tokens=False).input_ids
    assert pieces(TOKENIZER, token_ids, whole(token_ids)) == _stripped(_from_prefixes(TOKENIZER, token_ids))


def test_an_emoji_is_its_last_tokens() -> None:
    token_ids = TOKENIZER("a🦙b", add_special_tokens=False).input_ids
    assert pieces(TOKENIZER, token_ids, "a🦙b") == ["a", "", "", "", "🦙", "b"]


def test_labels_of_single_tokens() -> None:
    half = TOKENIZER("🦙", add_special_tokens=False).input_ids[0]
    assert label(TOKENIZER, half) == spelling(TOKENIZER, half) == "ð"
    assert label(TOKENIZER, TOKENIZER.eos_token_id) == "<|im_end|>"
    assert spelling(TOKENIZER, 99_999) == "#99999"
