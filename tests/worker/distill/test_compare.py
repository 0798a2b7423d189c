"""Answers for the side-by-side page: same seed, same text; each source its own weights; few models kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.core.errors import ContextTooShort, ModelNotFound
from app.core.job_config import FromTeacherStudent
from worker.distill.compare import AnswerText, ModelCache, answer
from worker.distill.models import ModelSource, TrainedModel, UntrainedStudent


def ask(
    cache: ModelCache, source: ModelSource, *, seed: int = 0, temperature: float = 1.0, tokens: int = 8
) -> AnswerText:
    return answer(
        cache,
        source,
        messages=[{"role": "user", "content": "the dog"}],
        max_new_tokens=tokens,
        temperature=temperature,
        top_p=1.0,
        seed=seed,
    )


def test_the_same_seed_gives_the_same_answer_and_another_seed_another(tiny_teacher: Path) -> None:
    cache, source = ModelCache(), TrainedModel(str(tiny_teacher))
    first, again, other = ask(cache, source), ask(cache, source), ask(cache, source, seed=1)
    assert (first.text, first.tokens) == (again.text, again.tokens)
    assert first.text != other.text
    assert ask(cache, source, temperature=0).text == ask(cache, source, temperature=0, seed=9).text
    assert 0 < first.tokens <= 8
    assert first.seconds > 0


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


def test_loaded_models_are_kept(tiny_teacher: Path, tmp_path: Path) -> None:
    cache = ModelCache()
    source = TrainedModel(str(tiny_teacher))
    assert cache.get(source) is cache.get(source)
    with pytest.raises(ModelNotFound):
        cache.get(TrainedModel(str(tmp_path / "nowhere")))


def test_a_prompt_that_does_not_fit_is_refused(tiny_teacher: Path) -> None:
    with pytest.raises(ContextTooShort, match="256 in all"):
        ask(ModelCache(), TrainedModel(str(tiny_teacher)), tokens=250)
