"""Which rows a batch takes: of several tried, those that the student has more to learn from are the likelier [ours].

Knows rows, both models and the divergence between them. Does not know what becomes of the chosen rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict, Unpack

import torch
from torch import Tensor

from app.core.job_config import ScrgConfig
from worker.distill.data import Row, ground_truth, kept_states
from worker.distill.evaluate import response_states
from worker.distill.generate import SamplingSettings, sample
from worker.distill.losses.base import log_probs
from worker.distill.models import SplitModel
from worker.distill.scrg import SCORED_LOGITS, divergence, read_with_teacher, score
from worker.distill.timing import Clock
from worker.distill.types import make_batch

_EVEN = 1e-6  # nats that every row has at least, so that there are always enough to draw from


class Looking(TypedDict):
    """What it takes to look at rows. `reads_teacher`: whether the losses that the rows are chosen for do."""

    teacher: SplitModel
    student: SplitModel
    reads_teacher: bool
    config: ScrgConfig
    settings: SamplingSettings
    generator: torch.Generator
    clock: Clock


def choose_rows(rows: Sequence[Row], count: int, **looking: Unpack[Looking]) -> list[Row]:
    """`count` of `rows`, in their order, drawn without replacement with chances in proportion to what is left to learn
    from each: the sum of `taught_disagreement`, or of `sampled_disagreement` if any of them lacks a response.

    Drawn, not the largest ones taken: those are much the same rows every time, and often ones that the teacher gets
    wrong. The KL to the teacher rather than the response's likelihood: it is zero where the teacher is as much in doubt
    as the student, so that noise in the data does not pass for something to be learned.
    """
    taught = all(row.response_ids is not None for row in rows)
    disagreement_B = (taught_disagreement if taught else sampled_disagreement)(rows, **looking)
    return [rows[b] for b in sorted(drawn(disagreement_B, count, generator=looking["generator"]))]


@torch.no_grad()
def taught_disagreement(rows: Sequence[Row], **looking: Unpack[Looking]) -> Tensor:
    """[B] nats over each row's response: the KL (`config.kl_direction`) between the two next-token distributions, or
    where no loss reads the teacher minus the response's log-likelihood. A pass of the student, and one of the teacher
    unless its states are kept with the rows. Runs over slices of positions, so no [B, T, V] tensor is whole."""
    teacher, student, clock = looking["teacher"], looking["student"], looking["clock"]
    with clock("data"):
        batch = make_batch(ground_truth(rows), pad_id=looking["settings"].pad_id, device=student.device)
        teacher_ND = kept_states(rows, student.device) if looking["reads_teacher"] else None
    if looking["reads_teacher"] and teacher_ND is None:
        with clock("teacher"):
            teacher_ND = response_states(teacher, batch)
    with clock("choice"):
        student_ND = response_states(student, batch)
        values = []
        for part_N in torch.arange(batch.num_positions).split(max(1, SCORED_LOGITS // teacher.vocabulary_size)):
            logits_NV = student.head(student_ND[part_N])
            if teacher_ND is None:
                log_q_NV = log_probs(logits_NV)
                values.append(-log_q_NV.gather(1, batch.labels_N[part_N, None]).squeeze(1))
            else:
                log_p_NV = log_probs(teacher.head(teacher_ND[part_N]))
                values.append(divergence(log_p_NV, logits_NV, config=looking["config"]))
        disagreement_B = torch.zeros(len(rows), device=student.device)
        return disagreement_B.index_add_(0, batch.row_N, torch.cat(values).float()) if values else disagreement_B


@torch.no_grad()
def sampled_disagreement(rows: Sequence[Row], **looking: Unpack[Looking]) -> Tensor:
    """[B] nats along a sample of the student's for each prompt: the KL (`config.kl_direction`), added up.

    The samples are thrown away: what is trained on is written anew for the chosen rows, so that it does not depend on
    having been chosen.
    """
    teacher, student, clock = looking["teacher"], looking["student"], looking["clock"]
    settings, generator = looking["settings"], looking["generator"]
    with clock("generate"):
        state = sample(student, [row.prompt_ids for row in rows], settings=settings, generator=generator)
    with clock("teacher"):
        reading = read_with_teacher(teacher, state, settings=settings)
        _, kl_BT = score(teacher, student, reading, state, config=looking["config"], generator=generator)
    return kl_BT.sum(1)


def drawn(disagreement_B: Tensor, count: int, *, generator: torch.Generator) -> list[int]:
    """`count` different indices, with chances in proportion to `disagreement_B`."""
    chance_B = disagreement_B.double().cpu().clamp(min=_EVEN)
    return torch.multinomial(chance_B, count, generator=generator).tolist()
