"""Answers for the side-by-side page: same seed, same text, however many write; each source its own weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from app.core.errors import ContextTooShort, ModelNotFound, NoChatTemplate
from app.core.job_config import FromTeacherStudent
from tests.tiny_models import make_tiny_model
from worker.distill.compare import AnswerStream, AnswerText, ModelCache, write_together
from worker.distill.export import weights_sha256
from worker.distill.generate import SamplingSettings, sample
from worker.distill.models import ModelSource, TrainedModel, UntrainedStudent, load_model
from worker.distill.pieces import pieces

MESSAGES = [{"role": "user", "content": "the dog"}]


def stream(cache: ModelCache, source: ModelSource, **changes: Any) -> AnswerStream:
    settings: dict[str, Any] = {
        "messages": MESSAGES,
        "template": None,
        "max_new_tokens": 8,
        "temperature": 1.0,
        "top_p": 1.0,
        "seed": 0,
    }
    return AnswerStream(cache.get(source), **settings | changes)


def ask(cache: ModelCache, source: ModelSource, **changes: Any) -> AnswerText:
    writing = stream(cache, source, **changes)
    write_together([writing], should_stop=lambda: False, told=lambda: None)
    return writing.so_far()


def test_the_same_seed_gives_the_same_answer_and_another_seed_another(tiny_teacher: Path) -> None:
    cache, source = ModelCache(), TrainedModel(str(tiny_teacher))
    first, again, other = ask(cache, source), ask(cache, source), ask(cache, source, seed=1)
    assert (first.text, first.token_ids) == (again.text, again.token_ids)
    assert first.token_ids != other.token_ids
    assert ask(cache, source, temperature=0).text == ask(cache, source, temperature=0, seed=9).text
    assert 0 < len(first.token_ids) <= 8
    assert first.first_token_s is not None
    assert 0 < first.first_token_s <= first.seconds


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_stream_writes_what_the_trainers_sampling_writes(tiny_teacher: Path, temperature: float) -> None:
    cache, source = ModelCache(), TrainedModel(str(tiny_teacher))
    writing = stream(cache, source, temperature=temperature, top_p=0.9, seed=3, max_new_tokens=24)
    write_together([writing], should_stop=lambda: False, told=lambda: None)
    loaded = cache.get(source)
    settings = SamplingSettings(
        max_new_tokens=24,
        temperature=temperature,
        top_p=0.9,
        eos_ids=writing.encoder.eos_ids,
        pad_id=loaded.tokenizer.pad_token_id,
    )
    state = sample(loaded.lm, [writing.prompt_ids], settings=settings, generator=torch.Generator().manual_seed(3))
    assert writing.so_far().token_ids == state.responses()[0]


def test_models_that_write_together_write_what_they_write_alone(tiny_teacher: Path, tiny_student: Path) -> None:
    cache = ModelCache()
    sources = [TrainedModel(str(tiny_teacher)), TrainedModel(str(tiny_student))]
    together = [stream(cache, source, temperature=0.8) for source in sources]
    lengths: list[tuple[int, ...]] = []
    write_together(
        together,
        should_stop=lambda: False,
        told=lambda: lengths.append(tuple(len(one.so_far().token_ids) for one in together)),
    )
    assert lengths[:2] == [(1, 1), (2, 2)]  # a token each in turn
    for source, one in zip(sources, together, strict=True):
        assert one.so_far().token_ids == ask(cache, source, temperature=0.8).token_ids


def test_a_stop_ends_every_answer_before_its_next_token(tiny_teacher: Path, tiny_student: Path) -> None:
    cache = ModelCache()
    streams = [
        stream(cache, TrainedModel(str(one)), max_new_tokens=64, temperature=0.0)
        for one in (tiny_teacher, tiny_student)
    ]
    asked: list[int] = []

    def should_stop() -> bool:
        asked.append(1)
        return len(asked) == 4

    write_together(streams, should_stop=should_stop, told=lambda: None)
    assert [len(one.so_far().token_ids) for one in streams] == [2, 1]
    assert [one.so_far().finish for one in streams] == ["cancelled", "cancelled"]


def test_a_stopped_answer_is_the_text_of_all_its_tokens(tiny_teacher: Path) -> None:
    """Also of one that stands in the middle of a character: what is read token by token later joins to it."""
    cache, source = ModelCache(), TrainedModel(str(tiny_teacher))
    in_the_middle = 0
    for seed in range(4):
        writing = stream(cache, source, seed=seed, max_new_tokens=24)
        while writing.advance():
            shown = writing.so_far().text
            assert not shown.endswith("\ufffd")
            stopped = stream(cache, source, seed=seed, max_new_tokens=24)
            for _ in writing.so_far().token_ids:
                stopped.advance()
            stopped.stop()
            said = stopped.so_far()
            assert "".join(pieces(cache.get(source).tokenizer, said.token_ids, said.text)) == said.text
            in_the_middle += said.text != shown
    assert in_the_middle


def test_every_source_has_its_own_weights_even_when_the_cache_holds_one(tiny_teacher: Path, tiny_student: Path) -> None:
    cache = ModelCache(max_models=1)
    sources: list[ModelSource] = [
        TrainedModel(str(tiny_teacher)),
        TrainedModel(str(tiny_student)),
        UntrainedStudent(str(tiny_teacher), FromTeacherStudent(layers=2, choice="even")),
        UntrainedStudent(str(tiny_teacher), FromTeacherStudent(layers=2, choice="first")),
    ]
    answers = [ask(cache, source) for source in sources]
    assert len({a.weights_sha256 for a in answers}) == 4
    for source, known in zip(sources, answers, strict=True):
        again = ask(cache, source)
        assert (again.text, again.weights_sha256) == (known.text, known.weights_sha256)
    assert answers[0].parameters > answers[2].parameters


def test_the_hash_is_that_of_the_weights_that_answer(tiny_teacher: Path, tiny_student: Path) -> None:
    """The files, read apart from the cache, have that hash; and they are the tensors of the model that writes."""
    cache = ModelCache()
    for folder in (tiny_teacher, tiny_student):
        source = TrainedModel(str(folder))
        answering = cache.get(source).lm.model
        stored = load_model(str(folder), device=answering.device)
        assert stream(cache, source).so_far().weights_sha256 == weights_sha256(stored)
        for mine, theirs in zip(answering.parameters(), stored.parameters(), strict=True):
            assert torch.equal(mine, theirs.to(mine.dtype))


def test_loaded_models_are_kept(tiny_teacher: Path, tmp_path: Path) -> None:
    cache = ModelCache()
    source = TrainedModel(str(tiny_teacher))
    assert cache.get(source) is cache.get(source)
    with pytest.raises(ModelNotFound):
        cache.get(TrainedModel(str(tmp_path / "nowhere")))


def test_a_prompt_that_does_not_fit_is_refused(tiny_teacher: Path) -> None:
    with pytest.raises(ContextTooShort, match="256 in all"):
        ask(ModelCache(), TrainedModel(str(tiny_teacher)), max_new_tokens=250)


def test_the_template_asked_for_is_used(tiny_teacher: Path, tmp_path: Path) -> None:
    cache, source = ModelCache(), TrainedModel(str(tiny_teacher))
    prompts = {
        template: cache.get(source).tokenizer.decode(stream(cache, source, template=template).prompt_ids)
        for template in (None, "chat", "alpaca", "plain")
    }
    assert prompts[None] == prompts["chat"]
    assert "<|im_start|>user" in prompts["chat"]
    assert prompts["alpaca"].startswith("### Instruction:\nthe dog")
    assert prompts["plain"] == "the dog\n"
    without = TrainedModel(str(make_tiny_model(tmp_path / "bare", chat_template=None)))
    assert ask(cache, without).template == "plain"
    with pytest.raises(NoChatTemplate):
        ask(cache, without, template="chat")
