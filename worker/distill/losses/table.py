"""The table of losses: which module computes which entry of a job's `losses`.

Knows all losses, and is the only place that does. To add one: its config class in `app/core/job_config.py`, its
module beside this file, one row here; the contract tests pick it up from this table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from app.core.loss_config import (
    DacKlLoss,
    ForwardKlLoss,
    JsdLoss,
    LossConfig,
    ReverseKlLoss,
    SftLoss,
    SkewKlLoss,
    SkewReverseKlLoss,
    SpanLoss,
    TopKKlLoss,
    TopPKlLoss,
    TvdLoss,
)
from worker.distill.losses.base import Loss
from worker.distill.losses.dac_kl import DacKl
from worker.distill.losses.fixed_mask_kl import TopKKl, TopPKl
from worker.distill.losses.forward_kl import ForwardKl
from worker.distill.losses.jsd import Jsd
from worker.distill.losses.reverse_kl import ReverseKl
from worker.distill.losses.sft import Sft
from worker.distill.losses.skew_kl import SkewKl, SkewReverseKl
from worker.distill.losses.span import Span
from worker.distill.losses.tvd import Tvd

LOSSES: Mapping[type[Any], Callable[[Any], Loss]] = {
    SftLoss: Sft,
    ForwardKlLoss: ForwardKl,
    ReverseKlLoss: ReverseKl,
    JsdLoss: Jsd,
    SkewKlLoss: SkewKl,
    SkewReverseKlLoss: SkewReverseKl,
    TvdLoss: Tvd,
    TopKKlLoss: TopKKl,
    TopPKlLoss: TopPKl,
    DacKlLoss: DacKl,
    SpanLoss: Span,
}


def build_loss(config: LossConfig) -> Loss:
    """The module for `config`. Its own parameters, if any, are drawn from torch's global generator."""
    return LOSSES[type(config)](config)
