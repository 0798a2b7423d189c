"""What to change when a training does not fit: numbers of this run and this machine, and smaller settings.

Knows which settings cost memory. Does not measure devices: an allocator's own words say what it had.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from app.core.job_config import DistillConfig, GroundTruthSampling


def advice(config: DistillConfig, *, needed_bytes: int | None) -> str:
    """`needed_bytes`: what the run was estimated to need."""
    numbers = f"the machine has {_gib(host_bytes())}"
    if needed_bytes is not None:
        numbers = f"the run was estimated to need {_gib(needed_bytes)}, {numbers}"
    return f"{numbers}; lower what costs most: {'; '.join(_smaller(config))}"


def _smaller(config: DistillConfig) -> Iterator[str]:
    training, data, sampling = config.training, config.data, config.sampling
    if training.logits == "whole":
        yield "training.logits to chunked"
    if training.batch_size > 1:
        half = training.batch_size // 2
        window = -(-training.batch_size * training.gradient_accumulation // half)
        yield (
            f"training.batch_size from {training.batch_size} to {half} and training.gradient_accumulation from "
            f"{training.gradient_accumulation} to {window}, for the same window"
        )
    if not isinstance(sampling, GroundTruthSampling):
        for name in ("batches_per_generation", "max_new_tokens"):
            if (now := getattr(sampling, name)) > 1:
                yield f"sampling.{name} from {now} to {now // 2}"
    if data.max_response_tokens > 1:
        yield f"data.max_response_tokens from {data.max_response_tokens} to {data.max_response_tokens // 2}"
    if training.precision == "float32":
        yield "training.precision to auto"
    yield "or a smaller student or teacher"


def host_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.3g} GiB"
