"""What to lower when a training does not fit: values that are really smaller, and a window that stays."""

from __future__ import annotations

import re
from typing import Any

import pytest

from app.core.job_config import DistillConfig
from worker.memory_advice import advice, host_bytes


def config(**sections: Any) -> DistillConfig:
    raw = {
        "teacher": {"model": "t"},
        "student": {"kind": "from_teacher", "layers": 2},
        "data": {"kind": "dataset", "dataset_id": "ds_1"},
    }
    return DistillConfig.model_validate(raw | sections)


def test_numbers_of_the_run_and_of_the_machine() -> None:
    words = advice(config(), needed_bytes=31 * 2**30)
    assert "estimated to need 31 GiB" in words
    assert f"the machine has {host_bytes() / 2**30:.3g} GiB" in words
    assert "estimated" not in advice(config(), needed_bytes=None)


@pytest.mark.parametrize(("size", "accumulation"), [(8, 1), (7, 3), (2, 1)])
def test_the_window_does_not_shrink(size: int, accumulation: int) -> None:
    words = advice(config(training={"batch_size": size, "gradient_accumulation": accumulation}), needed_bytes=None)
    found = re.search(r"batch_size from (\d+) to (\d+) and training.gradient_accumulation from (\d+) to (\d+)", words)
    assert found is not None
    before, smaller, was, more = map(int, found.groups())
    assert (before, was) == (size, accumulation)
    assert smaller < size
    assert smaller * more >= size * accumulation


def test_what_costs_nothing_is_not_named() -> None:
    smallest = config(
        training={"batch_size": 1, "precision": "bfloat16"},
        sampling={"kind": "ground_truth"},
        losses=[{"kind": "sft"}],
        data={"kind": "dataset", "dataset_id": "ds_1", "max_response_tokens": 1},
    )
    words = advice(smallest, needed_bytes=None)
    assert not re.search("batch_size|batches_per_generation|max_new_tokens|max_response_tokens|precision|logits", words)
    assert "batches_per_generation" not in advice(config(sampling={"kind": "on_policy"}), needed_bytes=None)
    together = config(sampling={"kind": "on_policy", "batches_per_generation": 5})
    assert "sampling.batches_per_generation from 5 to 2;" in advice(together, needed_bytes=None)
    whole = config(training={"logits": "whole", "precision": "float32"})
    assert re.search("logits to chunked.*precision to auto", advice(whole, needed_bytes=None))
