"""The text of each token, such that all of them together are exactly the answer's text.

Knows tokenizers only. A character may be several byte tokens, and some tokenizers drop or add spaces at the start of a
text: so texts of single tokens do not join to the answer, and pieces are cut from decoded neighbours instead.
"""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

_UNFINISHED = "\ufffd"  # what bytes of a character that is not complete decode to


def pieces(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int], text: str) -> list[str]:
    """One piece per token; they join to `text`, which is the decoded and stripped answer.

    A character of several tokens is the last one's; the others, and special tokens, have an empty piece.
    """
    cut = _windowed(tokenizer, token_ids)
    if "".join(cut).strip() != text:  # a tokenizer whose neighbours reach further than one token
        cut = _from_prefixes(tokenizer, token_ids)
    return _stripped(cut)


def label(tokenizer: PreTrainedTokenizerBase, token_id: int) -> str:
    """A single token by itself, for a list of candidates: its text, or the vocabulary's spelling of a part of a
    character, a control character or a special token."""
    alone = tokenizer.decode([token_id], skip_special_tokens=True)
    is_readable = bool(alone) and _UNFINISHED not in alone and (alone.isspace() or alone.strip().isprintable())
    return alone if is_readable else spelling(tokenizer, token_id)


def spelling(tokenizer: PreTrainedTokenizerBase, token_id: int) -> str:
    """The vocabulary's own name of the token; an id that the tokenizer does not know is shown as a number."""
    return tokenizer.convert_ids_to_tokens(token_id) or f"#{token_id}"


def _windowed(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> list[str]:
    """Linear in the answer's length: a token is decoded together with the last complete ones before it."""
    cut, start, done = [], 0, 0
    for end in range(1, len(token_ids) + 1):
        known = tokenizer.decode(token_ids[start:done], skip_special_tokens=True)
        window = tokenizer.decode(token_ids[start:end], skip_special_tokens=True)
        if window.endswith(_UNFINISHED) and end < len(token_ids):
            cut.append("")
            continue
        cut.append(window[len(known) :])
        start, done = done, end
    return cut


def _from_prefixes(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> list[str]:
    """The plain way, quadratic: what each token adds to the text before it."""
    whole = tokenizer.decode(token_ids, skip_special_tokens=True)
    cut, done = [], 0
    for end in range(1, len(token_ids) + 1):
        prefix = tokenizer.decode(token_ids[:end], skip_special_tokens=True)
        grown = len(prefix) if end == len(token_ids) or whole.startswith(prefix) else done
        cut.append(whole[done : max(done, grown)])
        done = max(done, grown)
    return cut


def _stripped(cut: list[str]) -> list[str]:
    """Without the white space at both ends of the whole, which the answer's text does not have either."""
    cut = list(cut)
    for order, strip in ((range(len(cut)), str.lstrip), (range(len(cut) - 1, -1, -1), str.rstrip)):
        for i in order:
            cut[i] = strip(cut[i])
            if cut[i]:
                break
    return cut
