"""Which prompts the student writes for: of several tried, those on which it disagrees with the teacher the more.

Knows samples and the divergence along them. Does not know what becomes of the chosen prompts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from app.core.job_config import ScrgConfig
from worker.distill.data import Row
from worker.distill.generate import SamplingSettings, sample
from worker.distill.models import SplitModel
from worker.distill.scrg import read_with_teacher, score
from worker.distill.timing import Clock

_EVEN = 1e-6  # nats that every prompt has at least, so that there are always enough to draw from


@torch.no_grad()
def choose_rows(
    rows: Sequence[Row],
    count: int,
    *,
    teacher: SplitModel,
    student: SplitModel,
    config: ScrgConfig,
    settings: SamplingSettings,
    generator: torch.Generator,
    clock: Clock,
) -> list[Row]:
    """`count` of `rows`, in their order, drawn without replacement with chances in proportion to the disagreement:
    the KL (`config.kl_direction`) added up over a sample of the student's [ours].

    Drawn, not the largest ones taken: those are much the same prompts every time, and often ones that the teacher gets
    wrong. The samples are thrown away: what is trained on is written anew for the chosen rows, so that it does not
    depend on having been chosen.
    """
    with clock("generate"):
        state = sample(student, [row.prompt_ids for row in rows], settings=settings, generator=generator)
    with clock("teacher"):
        reading = read_with_teacher(teacher, state, settings=settings)
        _, kl_BT = score(teacher, student, reading, state, config=config, generator=generator)
    return [rows[b] for b in sorted(drawn(kl_BT.sum(1), count, generator=generator))]


def drawn(disagreement_B: Tensor, count: int, *, generator: torch.Generator) -> list[int]:
    """`count` different indices, with chances in proportion to `disagreement_B`."""
    chance_B = disagreement_B.double().cpu().clamp(min=_EVEN)
    return torch.multinomial(chance_B, count, generator=generator).tolist()
