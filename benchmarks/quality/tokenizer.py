"""A word tokenizer of the closed world: every word with its leading space is one token, every digit is one token.

Knows the text of the tasks. Does not know models.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from benchmarks.quality.families import Task

PAD, UNKNOWN, END, USER, ASSISTANT = "<|pad|>", "<|unknown|>", "<|end|>", "<|user|>", "<|assistant|>"
_PIECE = Regex(r" ?[A-Za-z]+| ?\d| ?[^\sA-Za-z\d]|\s")
_CHAT = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tokenizer(tasks: Sequence[Task]) -> PreTrainedTokenizerFast:
    """A Hugging Face fast tokenizer over the words of `tasks`, in alphabetical order behind the special tokens."""
    pre_tokenizer = pre_tokenizers.Split(_PIECE, behavior="isolated")
    texts = (text for task in tasks for text in (task.prompt, task.response))
    words = {piece for text in texts for piece, _ in pre_tokenizer.pre_tokenize_str(text)}
    vocabulary = {word: i for i, word in enumerate([PAD, UNKNOWN, END, USER, ASSISTANT, *sorted(words)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=END,
        additional_special_tokens=[USER, ASSISTANT],
    )
    fast.chat_template = _CHAT
    return fast
