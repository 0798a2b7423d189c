"""Where two models part on one text: per token KL(teacher || student), both top candidates, and SCRG's error position.

Knows models and token ids. Does not know who wrote the text, or how the reading is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from app.core.errors import VocabularyMismatch
from app.core.job_config import ScrgConfig
from worker.distill.compare import LoadedModel
from worker.distill.decoder import Decoder
from worker.distill.generate import Rollouts
from worker.distill.models import SplitModel
from worker.distill.scrg import SCORED_LOGITS, TeacherReading, choose, score

TOP = 5


@dataclass(frozen=True)
class Reading:
    """Legend: T = the answer's tokens, K = TOP. `error_position` is None where the teacher would have said the same."""

    kl_T: Tensor
    teacher_token_T: Tensor
    mismatch_T: Tensor
    teacher_probability_T: Tensor
    student_probability_T: Tensor
    teacher_top_TK: tuple[Tensor, Tensor]
    student_top_TK: tuple[Tensor, Tensor]
    error_position: int | None


@torch.no_grad()
def read(
    teacher: LoadedModel,
    student: LoadedModel,
    *,
    prompt_ids: Sequence[int],
    answer_ids: Sequence[int],
    config: ScrgConfig,
    eos_ids: frozenset[int],
    max_logits: int = SCORED_LOGITS,
) -> Reading:
    """Both models over the same ids, teacher-forced; float32, in slices of positions, so no [T, V] tensor is whole.

    The error position is chosen by SCRG's own code with the settings `config` (a sampled teacher token with seed 0).
    Raises VocabularyMismatch for models of two tokenizers.
    """
    check_vocabulary(teacher, student)
    teacher_TD, student_TD = (states(side.lm, prompt_ids, answer_ids) for side in (teacher, student))
    answer_T = torch.tensor(answer_ids, device=teacher_TD.device)
    step = max(1, max_logits // teacher.lm.vocabulary_size)
    parts = [
        _slice(teacher.lm, student.lm, teacher_TD[at : at + step], student_TD[at : at + step], answer_T[at : at + step])
        for at in range(0, len(answer_ids), step)
    ]
    kl_T, p_T, q_T, top_p, top_i, top_q, top_j = (torch.cat(column).cpu() for column in zip(*parts, strict=True))
    token_T, error = _as_scrg(teacher.lm, student.lm, teacher_TD, student_TD, prompt_ids, answer_T, config, eos_ids)
    return Reading(
        kl_T=kl_T,
        teacher_token_T=token_T,
        mismatch_T=token_T != answer_T.cpu(),
        teacher_probability_T=p_T,
        student_probability_T=q_T,
        teacher_top_TK=(top_p, top_i),
        student_top_TK=(top_q, top_j),
        error_position=error,
    )


@torch.no_grad()
def mean_kl(
    teacher: LoadedModel, student: LoadedModel, *, prompt_ids: Sequence[int], answer_ids: Sequence[int]
) -> float:
    """KL(teacher || student) in nats per token of the answer."""
    check_vocabulary(teacher, student)
    teacher_TD, student_TD = (states(side.lm, prompt_ids, answer_ids) for side in (teacher, student))
    step = max(1, SCORED_LOGITS // teacher.lm.vocabulary_size)
    total = 0.0
    for at in range(0, len(answer_ids), step):
        log_p_TV = teacher.lm.head(teacher_TD[at : at + step]).float().log_softmax(-1)
        log_q_TV = student.lm.head(student_TD[at : at + step]).float().log_softmax(-1)
        total += float((log_p_TV.exp() * (log_p_TV - log_q_TV)).sum())
    return total / max(len(answer_ids), 1)


def check_vocabulary(teacher: LoadedModel, student: LoadedModel) -> None:
    same_size = teacher.lm.vocabulary_size == student.lm.vocabulary_size
    if not same_size or teacher.tokenizer.get_vocab() != student.tokenizer.get_vocab():
        raise VocabularyMismatch("the two models have different tokenizers: token by token they cannot be compared")


def states(lm: SplitModel, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> Tensor:
    """Hidden states [T, D] that predict the answer's tokens."""
    ids_BT = torch.tensor([[*prompt_ids, *answer_ids[:-1]]], device=lm.device)
    return lm.hidden(ids_BT)[0, len(prompt_ids) - 1 :]


def _slice(teacher: SplitModel, student: SplitModel, teacher_TD: Tensor, student_TD: Tensor, answer_T: Tensor) -> tuple:
    log_p_TV = teacher.head(teacher_TD).float().log_softmax(-1)
    log_q_TV = student.head(student_TD).float().log_softmax(-1)
    p_TV, q_TV = log_p_TV.exp(), log_q_TV.exp()
    at_T1 = answer_T[:, None]
    kl_T = (p_TV * (log_p_TV - log_q_TV)).sum(-1)
    said = (p_TV.gather(1, at_T1).squeeze(1), q_TV.gather(1, at_T1).squeeze(1))
    return (kl_T, *said, *p_TV.topk(TOP), *q_TV.topk(TOP))


def _as_scrg(
    teacher: SplitModel,
    student: SplitModel,
    teacher_TD: Tensor,
    student_TD: Tensor,
    prompt_ids: Sequence[int],
    answer_T: Tensor,
    config: ScrgConfig,
    eos_ids: frozenset[int],
) -> tuple[Tensor, int | None]:
    """The teacher's tokens [T] and the position that SCRG's first round would correct."""
    state = Rollouts(
        prompts=[tuple(prompt_ids)],
        prompt_length_B=torch.tensor([len(prompt_ids)], device=student.device),
        tokens_BT=answer_T[None],
        length_B=torch.tensor([len(answer_T)], device=student.device),
        hidden_BTD=student_TD[None],
        decoder=Decoder(student, rows=1),
    )
    reading = TeacherReading(hidden_BTD=teacher_TD[None], decoder=Decoder(teacher, rows=1))
    generator = torch.Generator().manual_seed(0)
    token_BT, kl_BT = score(teacher, student, reading, state, config=config, generator=generator)
    earliest_B = torch.zeros_like(state.length_B)
    position_B, found_B = choose(
        state, token_BT, kl_BT, earliest_B, config=config, eos_ids=eos_ids, generator=generator
    )
    return token_BT[0].cpu(), int(position_B) if bool(found_B) else None
