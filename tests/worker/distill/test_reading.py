"""What two models see in one text, against the plain formulas on whole logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from app.core.errors import VocabularyMismatch
from app.core.job_config import ScrgConfig
from tests.tiny_models import make_tiny_model
from worker.distill.compare import LoadedModel, ModelCache
from worker.distill.models import TrainedModel
from worker.distill.reading import TOP, Reading, mean_kl, read

PROMPT, ANSWER = [5, 9, 40, 41, 7], [60, 61, 90, 12, 13, 200, 2]
EOS = frozenset({2})


@pytest.fixture(scope="module")
def pair(tiny_teacher: Path, tiny_student: Path) -> tuple[LoadedModel, LoadedModel]:
    cache = ModelCache()
    return cache.get(TrainedModel(str(tiny_teacher))), cache.get(TrainedModel(str(tiny_student)))


def log_probabilities(side: LoadedModel) -> torch.Tensor:
    with torch.no_grad():
        logits = side.lm.model(torch.tensor([PROMPT + ANSWER])).logits[0, len(PROMPT) - 1 : -1]
    return logits[:, : side.lm.vocabulary_size].float().log_softmax(-1)


def reading(pair: tuple[LoadedModel, LoadedModel], config: ScrgConfig, *, max_logits: int = 2**25) -> Reading:
    return read(*pair, prompt_ids=PROMPT, answer_ids=ANSWER, config=config, eos_ids=EOS, max_logits=max_logits)


def test_the_numbers_are_those_of_the_formulas(pair: tuple[LoadedModel, LoadedModel]) -> None:
    found = reading(pair, ScrgConfig(teacher_token="greedy"))
    log_p, log_q = (log_probabilities(side) for side in pair)
    kl = (log_p.exp() * (log_p - log_q)).sum(-1)
    torch.testing.assert_close(found.kl_T, kl, atol=1e-4, rtol=1e-4)
    said = torch.tensor(ANSWER)[:, None]
    torch.testing.assert_close(
        found.teacher_probability_T, log_p.gather(1, said).exp().squeeze(1), atol=1e-5, rtol=1e-4
    )
    torch.testing.assert_close(
        found.student_probability_T, log_q.gather(1, said).exp().squeeze(1), atol=1e-5, rtol=1e-4
    )
    assert found.teacher_top_TK[1].tolist() == log_p.topk(TOP).indices.tolist()
    assert found.student_top_TK[1].tolist() == log_q.topk(TOP).indices.tolist()
    assert found.teacher_token_T.tolist() == log_p.argmax(-1).tolist()
    mismatch = log_p.argmax(-1) != said.squeeze(1)
    assert found.error_position == int(kl.masked_fill(~mismatch, -1).argmax())
    assert mean_kl(*pair, prompt_ids=PROMPT, answer_ids=ANSWER) == pytest.approx(float(kl.mean()), abs=1e-4)


def test_slices_of_positions_change_nothing(pair: tuple[LoadedModel, LoadedModel]) -> None:
    whole, sliced = reading(pair, ScrgConfig()), reading(pair, ScrgConfig(), max_logits=1)
    assert sliced.error_position == whole.error_position
    torch.testing.assert_close(sliced.kl_T, whole.kl_T)
    torch.testing.assert_close(sliced.student_top_TK[0], whole.student_top_TK[0])


def test_the_error_position_follows_the_jobs_settings(pair: tuple[LoadedModel, LoadedModel]) -> None:
    first = reading(pair, ScrgConfig(teacher_token="greedy", position="first"))
    assert first.error_position == first.mismatch_T.int().argmax()
    sampled, greedy = reading(pair, ScrgConfig()), reading(pair, ScrgConfig(teacher_token="greedy"))
    assert sampled.teacher_token_T.tolist() != greedy.teacher_token_T.tolist()


def test_a_model_that_reads_its_own_greedy_answer_finds_no_error(pair: tuple[LoadedModel, LoadedModel]) -> None:
    teacher, _ = pair
    answer: list[int] = []
    with torch.no_grad():
        for _ in range(6):
            logits = teacher.lm.model(torch.tensor([PROMPT + answer])).logits[0, -1, : teacher.lm.vocabulary_size]
            answer.append(int(logits.argmax()))
    config = ScrgConfig(teacher_token="greedy")
    found = read(teacher, teacher, prompt_ids=PROMPT, answer_ids=answer, config=config, eos_ids=EOS)
    assert found.error_position is None
    assert float(found.kl_T.abs().max()) < 1e-5


def test_two_tokenizers_are_refused(pair: tuple[LoadedModel, LoadedModel], tmp_path: Path) -> None:
    stranger = ModelCache().get(TrainedModel(str(make_tiny_model(tmp_path / "other", extra_tokens=["<extra>"]))))
    with pytest.raises(VocabularyMismatch):
        read(pair[0], stranger, prompt_ids=PROMPT, answer_ids=ANSWER, config=ScrgConfig(), eos_ids=EOS)
