"""Phrases of a response as runs of its tokens, and the pairs of adjacent tokens inside them (for the span loss).

Knows decoded token ids and chunkers. Does not know models or losses, and never tokenizes text again: a sampled
response often does not re-encode to its own ids, so spans are mapped from the decoded pieces of the ids there are.
"""

from __future__ import annotations

import random
import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, Protocol

import torch
from transformers import PreTrainedTokenizerBase

from app.core.errors import MissingDependency
from app.core.loss_config import LossConfig, SpanLoss
from worker.distill.types import SpanPairs, TokenSequence

# Start and end (exclusive): of characters in a text, or of tokens in a response.
Range = tuple[int, int]


class Chunker(Protocol):
    """Finds the spans of a response."""

    def spans(self, pieces: Sequence[str]) -> list[Range]:
        """Disjoint token ranges in order. `pieces` are the texts of the response's tokens (see `decode_pieces`)."""
        ...


class SpanFinder:
    """Span pairs of sequences. Remembers the spans of responses it has seen (replayed and ground-truth rows)."""

    def __init__(self, *, tokenizer: PreTrainedTokenizerBase, chunker: Chunker, remembered: int = 20_000) -> None:
        self._tokenizer = tokenizer
        self._chunker = chunker
        self._spans = lru_cache(maxsize=remembered)(self._find)

    def pairs(self, sequences: Sequence[TokenSequence]) -> SpanPairs:
        """All adjacent tokens inside one span, as positions in N of the micro-batch that `sequences` make."""
        index: list[Range] = []
        span: list[int] = []
        offset = num_spans = 0
        for sequence in sequences:
            for start, end in self._spans(sequence.response_ids):
                index.extend((offset + i, offset + i + 1) for i in range(start, end - 1))
                span.extend([num_spans] * (end - 1 - start))
                num_spans += 1
            offset += len(sequence.response_ids)
        return SpanPairs(torch.tensor(index, dtype=torch.long).reshape(-1, 2), torch.tensor(span, dtype=torch.long))

    def _find(self, response_ids: tuple[int, ...]) -> list[Range]:
        return self._chunker.spans(decode_pieces(self._tokenizer, response_ids))


def make_span_finder(
    losses: Sequence[LossConfig], *, tokenizer: PreTrainedTokenizerBase, seed: int
) -> SpanFinder | None:
    """The finder that `losses` ask for, or None if none of them looks at spans. Raises MissingDependency."""
    for config in losses:
        if isinstance(config, SpanLoss):
            return SpanFinder(tokenizer=tokenizer, chunker=make_chunker(config, seed=seed))
    return None


def make_chunker(config: SpanLoss, *, seed: int) -> Chunker:
    """The chunker that `config` names; `seed` places the spans of `random`. Raises MissingDependency."""
    if config.chunker == "random":
        return RandomChunker(like=TextBlobChunker(), seed=seed)
    if config.chunker == "spacy":
        return SpacyChunker(config.spacy_pipeline)
    return WordChunker() if config.chunker == "words" else TextBlobChunker()


# --- from token ids to text and back ------------------------------------------------------------------------

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
_TEXT = re.compile(rf"[^\s{_UNFINISHED}]")
_LONGEST_CHARACTER = 4  # bytes of UTF-8, so tokens of one byte each


def decode_pieces(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """The text that each token adds; joined they are the response's text.

    A token of a byte-level vocabulary may be part of a character: it adds nothing ("") and the token that completes
    the character adds it. A special token adds a line break, so that no phrase reaches over it.
    """
    special = set(tokenizer.all_special_ids)
    pieces: list[str] = []
    start = done = 0  # ids[start:done] are complete and give the context that decoders look at (a leading space)
    for i, token_id in enumerate(ids):
        if token_id in special:
            pieces.append("\n")
            start = done = i + 1
            continue
        known, text = _decode(tokenizer, ids[start:done]), _decode(tokenizer, ids[start : i + 1])
        if len(text) == len(known) or (text.endswith(_UNFINISHED) and i + 1 - done < _LONGEST_CHARACTER):
            pieces.append("")
        else:
            pieces.append(text[len(known) :])
            start, done = done, i + 1
    return pieces


def _decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False) if ids else ""


def to_tokens(pieces: Sequence[str], phrases: Sequence[Range]) -> list[Range]:
    """Token ranges of character ranges, both disjoint and in order; a phrase without a token is left out.

    A token belongs to the phrase of its first character that is text (`Ġdog` begins at its d); a token that is only
    part of a character, to the phrase of that character.
    """
    begins, tokens = [], []
    begin: int | None = None
    ends = list(accumulate(map(len, pieces)))
    for i in reversed(range(len(pieces))):
        if pieces[i]:
            text = _TEXT.search(pieces[i])
            begin = ends[i] - len(pieces[i]) + text.start() if text else None
        if begin is not None:
            begins.append(begin)
            tokens.append(i)
    begins.reverse()
    tokens.reverse()
    found = []
    for start, end in phrases:
        first, last = bisect_left(begins, start), bisect_left(begins, end) - 1
        if first <= last:
            found.append((tokens[first], tokens[last] + 1))
    return found


# --- chunkers -----------------------------------------------------------------------------------------------

_WORD = re.compile(r"\w+")
# A word with its inner hyphens, dots and commas (state-of-the-art, 3.50); n't and 's apart, as the lexicon has them.
_TREEBANK_WORD = re.compile(
    r"\w+(?=n['’]t\b)|n['’]t\b|['’](?:s|m|d|ll|re|ve)\b|\w+(?:[-.,]\w+)*|[^\w\s]", re.IGNORECASE
)
_SENTENCE = re.compile(r"(?:[^\n.!?]|[.!?](?!\s))+[.!?]*")


class TextChunker(ABC):
    """A chunker that reads the text of the response."""

    def spans(self, pieces: Sequence[str]) -> list[Range]:
        return to_tokens(pieces, self.phrases("".join(pieces)))

    @abstractmethod
    def phrases(self, text: str) -> list[Range]:
        """Disjoint character ranges in order."""


class WordChunker(TextChunker):
    """A word is a span of its own sub-tokens, in any language (without spaces: what lies between punctuation)."""

    def phrases(self, text: str) -> list[Range]:
        return [word.span() for word in _WORD.finditer(text)]


class TextBlobChunker(TextChunker):
    """English noun, verb and prepositional phrases by TextBlob's pattern parser, whose lexicon is in its wheel.

    A prepositional phrase is TextBlob's PNP ("over the lazy dog"): its PP is the preposition alone. [ours] The PNP
    takes the place of the noun phrase inside it, so no pair of tokens is counted twice. Words are split here because
    the parser's own splitter gives no offsets and makes three words of "n't".
    """

    def __init__(self) -> None:
        from textblob.en import parser  # about a quarter of a second, and only this chunker needs it

        self._parser = parser

    def phrases(self, text: str) -> list[Range]:
        found: list[Range] = []
        for sentence in _SENTENCE.finditer(text):
            words = list(_TREEBANK_WORD.finditer(text, *sentence.span()))
            if words:
                found.extend((words[i].start(), words[j - 1].end()) for i, j in self._word_ranges(words))
        return found

    def _word_ranges(self, words: Sequence[re.Match[str]]) -> Iterator[Range]:
        plain = [word.group().replace("’", "'") for word in words]
        (tagged,) = self._parser.parse([plain], tokenize=False, split=True)
        labels = [_phrase_label(chunk, prepositional) for _, _, chunk, prepositional in tagged]
        start = 0
        for i in range(1, len(labels) + 1):
            if i == len(labels) or labels[i] != "I" + labels[start][1:]:
                if labels[start] != "O":
                    yield start, i
                start = i


def _phrase_label(chunk: str, prepositional: str) -> str:
    """`B-NP` begins a phrase, `I-NP` continues it, `O` is outside of those that count."""
    if prepositional != "O":
        return prepositional
    return chunk if chunk[2:] in ("NP", "VP", "PP") else "O"


class SpacyChunker(TextChunker):
    """The same three kinds of phrase by an installed spaCy pipeline with a tagger and a parser."""

    def __init__(self, pipeline: str) -> None:
        try:
            import spacy

            self._pipeline: Any = spacy.load(pipeline)
        except (ImportError, OSError) as error:
            raise MissingDependency(
                f"spaCy or its pipeline {pipeline!r} is not installed ({error}); run `pip install spacy` and "
                f"`python -m spacy download {pipeline}`, or set the chunker to 'textblob'",
                "losses.span.chunker",
            ) from error

    def phrases(self, text: str) -> list[Range]:
        return phrases_of_doc(self._pipeline(text))


def phrases_of_doc(doc: Any) -> list[Range]:
    """Noun chunks of a parsed spaCy Doc, each with an adposition right before it, and runs of verbs and auxiliaries."""
    found: list[Range] = []
    for chunk in doc.noun_chunks:
        first = doc[chunk.start - 1] if chunk.start and doc[chunk.start - 1].pos_ == "ADP" else doc[chunk.start]
        found.append((first.idx, chunk.end_char))
    verb: Range | None = None
    for token in [*doc, None]:
        is_verb = token is not None and token.pos_ in ("VERB", "AUX")
        if is_verb:
            verb = (verb[0] if verb else token.idx, token.idx + len(token))
        elif verb:
            found.append(verb)
            verb = None
    return sorted(found)


class RandomChunker:
    """A control: as many spans of the same lengths as another chunker finds, at random disjoint places in any order.

    The places depend on the seed and the response alone, so a replayed response keeps its spans.
    """

    def __init__(self, *, like: Chunker, seed: int) -> None:
        self._like = like
        self._seed = seed

    def spans(self, pieces: Sequence[str]) -> list[Range]:
        lengths = [end - start for start, end in self._like.spans(pieces)]
        num_tokens = max(
            (i + 1 for i, piece in enumerate(pieces) if piece.strip()), default=0
        )  # not over the end token
        chance = random.Random(f"{self._seed} {pieces}")
        chance.shuffle(lengths)
        gaps = sorted(chance.choices(range(num_tokens - sum(lengths) + 1), k=len(lengths)))
        starts = [gap + before for gap, before in zip(gaps, accumulate([0, *lengths]), strict=False)]
        return [(start, start + length) for start, length in zip(starts, lengths, strict=True)]
