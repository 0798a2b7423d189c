import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from app.core.errors import MissingDependency
from app.core.loss_config import DacKlLoss, SpanLoss
from tests.tiny_models import WORDS, make_tokenizer
from worker.distill.spans import (
    RandomChunker,
    SpanFinder,
    TextBlobChunker,
    WordChunker,
    decode_pieces,
    make_chunker,
    make_span_finder,
    phrases_of_doc,
    to_tokens,
)
from worker.distill.types import TokenSequence

TOKENIZER = make_tokenizer()
EOS = TOKENIZER.eos_token_id
SENTENCE = "The small dog quickly sees the old birds in the quiet garden."


def words_of(text: str) -> list[str]:
    """Pieces of one word each, the space in front, as byte-level vocabularies have them."""
    first, *others = text.split(" ")
    return [first, *(f" {word}" for word in others)]


def texts(pieces: list[str], spans: list[tuple[int, int]]) -> list[str]:
    return ["".join(pieces[start:end]).strip() for start, end in spans]


# --- pieces -------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(text=st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\ufffd"), max_size=40))
def test_pieces_join_to_the_text_whatever_the_script(text):
    """The tokenizer has one token per byte outside of a few English words, so most characters are several tokens."""
    ids = TOKENIZER(text, add_special_tokens=False).input_ids
    pieces = decode_pieces(TOKENIZER, ids)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == text


def test_a_token_that_is_part_of_a_character_adds_nothing_and_the_last_one_adds_it():
    ids = TOKENIZER("é京", add_special_tokens=False).input_ids
    assert len(ids) == 5  # two and three bytes
    assert decode_pieces(TOKENIZER, ids) == ["", "é", "", "", "京"]


def test_ids_that_do_not_re_encode_to_themselves_keep_their_own_pieces():
    """A sampled response may spell a word in letters that the tokenizer would write as one token."""
    (whole,) = TOKENIZER("the", add_special_tokens=False).input_ids
    spelled = TOKENIZER.convert_tokens_to_ids(["t", "h", "e"])
    assert spelled != [whole]
    assert decode_pieces(TOKENIZER, spelled) == ["t", "h", "e"]


def test_invalid_bytes_do_not_swallow_what_follows():
    broken = TOKENIZER("京", add_special_tokens=False).input_ids[:1]
    word = TOKENIZER.convert_tokens_to_ids(["d", "o", "g"])
    pieces = decode_pieces(TOKENIZER, [*broken, *word])
    assert pieces[-2:] == ["o", "g"]
    assert pieces[:2] == ["", "\ufffdd"]
    assert to_tokens(pieces, WordChunker().phrases("".join(pieces))) == [(0, 4)]


def test_endless_invalid_bytes_are_given_up_after_one_characters_length():
    broken = TOKENIZER("京", add_special_tokens=False).input_ids[:1]
    pieces = decode_pieces(TOKENIZER, broken * 9)
    assert [bool(piece) for piece in pieces] == [False, False, False, True] * 2 + [False]


def test_a_special_token_is_a_line_break():
    ids = TOKENIZER("a dog", add_special_tokens=False).input_ids
    assert decode_pieces(TOKENIZER, [*ids, EOS, *ids])[len(ids)] == "\n"


def test_a_space_that_a_decoder_drops_at_the_start_is_kept_inside():
    """Sentencepiece-like vocabularies decode a lone `▁dog` to `dog`: pieces need the token before it."""
    vocabulary = {"<unk>": 0, "▁a": 1, "▁dog": 2, "s": 3}
    backend = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    assert decode_pieces(tokenizer, [1, 2, 3, 2]) == ["a", " dog", "s", " dog"]


# --- characters to tokens -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pieces", "phrase", "tokens"),
    [
        (["The", " dog", " sees"], (0, 7), (0, 2)),
        (["The", " dog", " sees"], (4, 7), (1, 2)),  # the space before `dog` belongs to its token
        (["The", " do", "gs", "."], (4, 8), (1, 3)),
        (["a", " ", "", "京", "b"], (2, 3), (2, 4)),  # a part of a character goes with the character
        (["a", "  ", "b", " ", "c"], (3, 6), (2, 5)),  # a token of blanks inside a phrase, not before it
        (["under", "stand"], (5, 5), None),
    ],
)
def test_a_token_belongs_to_the_phrase_of_its_first_text(pieces, phrase, tokens):
    assert to_tokens(pieces, [phrase]) == ([tokens] if tokens else [])


# --- chunkers -----------------------------------------------------------------------------------------------


def test_textblob_finds_noun_verb_and_prepositional_phrases():
    pieces = words_of(SENTENCE)
    found = texts(pieces, TextBlobChunker().spans(pieces))
    assert found == ["The small dog", "quickly sees", "the old birds", "in the quiet garden."]


def test_textblob_keeps_contractions_in_one_verb_phrase_and_stops_at_line_breaks():
    pieces = ["He", " doesn", "'t", " want", " the", " dog", "\n", "\n", "The", " cat", " sleeps"]
    found = texts(pieces, TextBlobChunker().spans(pieces))
    assert found == ["He", "doesn't want", "the dog", "The cat", "sleeps"]


def test_textblob_needs_no_corpus(monkeypatch):
    import nltk

    def refuse(*args, **kwargs):
        raise AssertionError("asked for an NLTK corpus")

    monkeypatch.setattr(nltk, "download", refuse)
    monkeypatch.setattr(nltk.data, "find", refuse)
    assert TextBlobChunker().spans(words_of(SENTENCE))


def test_a_word_is_a_span_of_its_own_sub_tokens():
    pieces = ["un", "der", "stand", " the", " 北", "京", ",", " ok"]
    assert texts(pieces, WordChunker().spans(pieces)) == ["understand", "the", "北京", "ok"]


def test_random_spans_have_textblobs_lengths_at_other_places_and_stay_off_the_end_token():
    pieces = [*words_of(" ".join([SENTENCE] * 6)), "\n"]
    blob = TextBlobChunker()
    expected, found = blob.spans(pieces), RandomChunker(like=blob, seed=0).spans(pieces)
    assert sorted(b - a for a, b in found) == sorted(b - a for a, b in expected)
    assert found != expected
    assert found[-1][1] < len(pieces)


def test_random_spans_depend_on_the_seed_and_the_response_alone():
    pieces = words_of(" ".join([SENTENCE] * 3))
    chunkers = [RandomChunker(like=TextBlobChunker(), seed=seed) for seed in (1, 1, 2)]
    first, same, other = (chunker.spans(pieces) for chunker in chunkers)
    assert first == same == chunkers[0].spans(pieces)
    assert first != other


@settings(deadline=None, max_examples=50)
@given(ids=st.lists(st.integers(0, len(TOKENIZER) - 1), max_size=60))
@pytest.mark.parametrize("chunker", ["textblob", "words", "random"])
def test_spans_of_any_ids_are_disjoint_ordered_and_inside(chunker, ids):
    """A weak student samples anything at all."""
    spans = make_chunker(SpanLoss(chunker=chunker), seed=0).spans(decode_pieces(TOKENIZER, ids))
    assert all(start < end for start, end in spans)
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))
    assert all(start >= 0 and end <= len(ids) for start, end in spans)


@pytest.mark.parametrize("pipeline", ["no_such_pipeline"])
def test_spacy_that_is_not_there_says_how_to_get_it(pipeline):
    with pytest.raises(MissingDependency, match="pip install spacy") as caught:
        make_chunker(SpanLoss(chunker="spacy", spacy_pipeline=pipeline), seed=0)
    assert pipeline in caught.value.message
    assert caught.value.field == "losses.span.chunker"


def test_phrases_of_a_parsed_spacy_document():
    spacy = pytest.importorskip("spacy", reason="spaCy is optional")
    words = ["The", "dog", "has", "seen", "birds", "in", "the", "garden", "."]
    doc = spacy.tokens.Doc(
        spacy.blank("en").vocab,
        words=words,
        pos=["DET", "NOUN", "AUX", "VERB", "NOUN", "ADP", "DET", "NOUN", "PUNCT"],
        heads=[1, 3, 3, 3, 3, 3, 7, 5, 3],
        deps=["det", "nsubj", "aux", "ROOT", "dobj", "prep", "det", "pobj", "punct"],
    )
    found = [doc.text[start:end] for start, end in phrases_of_doc(doc)]
    assert found == ["The dog", "has seen", "birds", "in the garden"]


# --- pairs --------------------------------------------------------------------------------------------------


def spelled(text: str) -> tuple[int, ...]:
    return (*TOKENIZER(text, add_special_tokens=False).input_ids, EOS)


def test_pairs_are_adjacent_tokens_of_one_span_at_their_place_in_the_micro_batch():
    letters = tuple(TOKENIZER.convert_tokens_to_ids([*"cat"]))
    space = TOKENIZER.convert_tokens_to_ids("Ġ")
    rows = [
        TokenSequence((1,), (*letters, space, *letters[:2], EOS), True),  # cat ca: positions 0-2 and 4-5 of 7
        TokenSequence((1,), (*letters[:1], EOS), True),  # one letter has no pair: positions 7-8
        TokenSequence((1,), (*letters, EOS), True),  # positions 9-11
    ]
    pairs = SpanFinder(tokenizer=TOKENIZER, chunker=WordChunker()).pairs(rows)
    assert pairs.index_P2.tolist() == [[0, 1], [1, 2], [4, 5], [9, 10], [10, 11]]
    first, second, third = pairs.span_P.unique().tolist()
    assert pairs.span_P.tolist() == [first, first, second, third, third]


def test_a_response_without_a_phrase_has_no_pairs():
    pairs = SpanFinder(tokenizer=TOKENIZER, chunker=TextBlobChunker()).pairs([TokenSequence((1,), (EOS,), True)])
    assert pairs.index_P2.shape == (0, 2)
    assert pairs.span_P.shape == (0,)


class _Counting(WordChunker):
    def __init__(self) -> None:
        self.asked = 0

    def phrases(self, text):
        self.asked += 1
        return super().phrases(text)


def test_a_response_is_chunked_once():
    chunker = _Counting()
    finder = SpanFinder(tokenizer=TOKENIZER, chunker=chunker)
    one, other = TokenSequence((1,), spelled("a dog"), True), TokenSequence((9, 9), spelled("a dog"), False)
    first = finder.pairs([one, other])
    assert finder.pairs([other, one]).index_P2.tolist() == first.index_P2.tolist()
    assert chunker.asked == 1


def test_pairs_match_the_text_of_real_responses():
    """Decoding the tokens of each span gives back the phrase."""
    chance = random.Random(0)
    vocabulary = WORDS.split()
    chunker = TextBlobChunker()
    for _ in range(20):
        text = " ".join(chance.choices(vocabulary, k=12)).capitalize() + "."
        ids = spelled(text)
        expected = [text[start:end] for start, end in chunker.phrases(text)]
        found = [
            TOKENIZER.decode(ids[start:end]).strip(" .") for start, end in chunker.spans(decode_pieces(TOKENIZER, ids))
        ]
        assert found == expected


def test_only_a_span_loss_needs_a_finder():
    assert make_span_finder([DacKlLoss()], tokenizer=TOKENIZER, seed=0) is None
    assert make_span_finder([DacKlLoss(), SpanLoss()], tokenizer=TOKENIZER, seed=0) is not None
