"""Readings and scores as the API shows them, of tiny real models."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.core.job_config import ScrgConfig
from tests.tiny_models import make_tiny_model
from worker.distill.compare import AnswerStream, LoadedModel, ModelCache, write_together
from worker.distill.models import TrainedModel
from worker.readings import divergence, row_score

MESSAGES = [{"role": "user", "content": "the small dog"}]


@pytest.fixture(scope="module")
def pair(tiny_teacher: Path, tiny_student: Path) -> tuple[LoadedModel, LoadedModel]:
    cache = ModelCache()
    return cache.get(TrainedModel(str(tiny_teacher))), cache.get(TrainedModel(str(tiny_student)))


def answered(model: LoadedModel) -> AnswerStream:
    stream = AnswerStream(
        model, messages=MESSAGES, template="plain", max_new_tokens=12, temperature=0.0, top_p=1.0, seed=0
    )
    write_together([stream], should_stop=lambda: False, told=lambda: None)
    return stream


@pytest.mark.parametrize(
    ("scrg", "words"),
    [
        (ScrgConfig(), "the largest KL(teacher‖student) among the tokens that differ from the teacher's token sampled"),
        (ScrgConfig(teacher_token="greedy", position="first"), "the first among the tokens that differ from the"),
        (ScrgConfig(kl_direction="student_teacher"), "the largest KL(student‖teacher)"),
    ],
    ids=["default", "first", "reverse"],
)
def test_a_reading_says_how_the_error_was_chosen(
    pair: tuple[LoadedModel, LoadedModel], scrg: ScrgConfig, words: str
) -> None:
    teacher, student = pair
    said = answered(student).so_far()
    found = divergence(
        author=student,
        template="plain",
        messages=MESSAGES,
        answer_ids=said.token_ids,
        teacher=teacher,
        student=student,
        scrg=scrg,
    )
    assert found.rule.startswith(words)
    assert "".join(token.text for token in found.tokens) == found.text == said.text
    assert found.largest is not None
    assert found.tokens[found.largest].kl == max(token.kl for token in found.tokens)
    for token in found.tokens:
        assert len(token.teacher_top) == len(token.student_top) == 5
        assert all(candidate.text for candidate in [*token.teacher_top, *token.student_top])


def test_scores_are_null_where_there_is_nothing_to_measure_against(
    pair: tuple[LoadedModel, LoadedModel], tmp_path: Path
) -> None:
    teacher, student = pair
    stream = answered(student)
    text = stream.so_far().text
    exact = row_score("mdl", stream, student, teacher=teacher, reference=f"the {text}")
    assert exact.kl is not None
    assert exact.kl > 0
    assert exact.rouge_l is not None
    stranger = ModelCache().get(TrainedModel(str(make_tiny_model(tmp_path / "other", extra_tokens=["<extra>"]))))
    bare = row_score("mdl", stream, student, teacher=stranger, reference=None)
    assert (bare.kl, bare.rouge_l) == (None, None)
