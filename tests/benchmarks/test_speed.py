"""What `make bench-speed` counts on, at toy size: sizes and counts, not times, so that they cannot flake."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import Cancelled
from app.core.job_config import DistillConfig
from benchmarks.speed.report import page
from tests.benchmarks.speed.watching import Widest
from worker.distill import assembly, read_along, scrg
from worker.distill.trainer import distill

VOCABULARY = 320
POSITIONS = 6  # of one slice
BATCH = 4


@pytest.mark.parametrize("logits", ["chunked", "whole"])
def test_no_tensor_holds_all_positions_and_the_vocabulary(
    tiny_teacher: Path, tiny_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logits: str
) -> None:
    monkeypatch.setitem(assembly.LOGITS_PER_CHUNK, "cpu", POSITIONS * VOCABULARY)
    monkeypatch.setattr(read_along, "SCORED_LOGITS", POSITIONS * VOCABULARY)
    score = getattr(scrg.score, "__wrapped__", scrg.score)
    monkeypatch.setitem(score.__kwdefaults__, "max_logits", POSITIONS * VOCABULARY)
    config = DistillConfig.model_validate(
        {
            "teacher": {"model": str(tiny_teacher)},
            "student": {"kind": "from_teacher", "layers": 2},
            "data": {"kind": "file", "path": str(tiny_rows), "dev_rows": 2, "max_response_tokens": 24},
            "sampling": {"kind": "on_policy", "max_new_tokens": 24},
            "training": {"max_steps": 1, "batch_size": BATCH, "precision": "float32", "logits": logits},
            "evaluation": {"rouge_rows": 0, "samples": 0},
        }
    )
    widest = Widest(VOCABULARY, width=32)

    # Watches the one step, not loading or evaluation.
    training = {"now": False, "steps": 0}

    def emit(event: Any) -> None:
        training["now"] = getattr(event, "phase", None) == "training" or training["now"]
        if event.kind == "step":
            training["steps"] += 1
            widest.__exit__(None, None, None)

    def should_stop() -> Any:
        if training["now"] and not training["steps"]:
            widest.__enter__()
        return "cancel" if training["steps"] else None

    with contextlib.suppress(Cancelled):
        distill(config, out=tmp_path, emit=emit, should_stop=should_stop)
    assert training["steps"] == 1
    if logits == "chunked":
        assert 0 < widest.rows <= POSITIONS + 1
    else:
        assert widest.rows > 4 * POSITIONS


def test_the_page_says_which_targets_are_met() -> None:
    row = {"row": "a", "ours": 1.0, "peer": 2.0, "unit": "s", "ratio": 0.5, "target": 0.6, "runs": 5}
    text = page({"machine": {"cpu": "x"}, "rows": [row, row | {"row": "b", "target": 0.4}, row | {"target": None}]})
    lines = [line for line in text.splitlines() if line.startswith(("| a", "| b"))]
    assert [line.split("|")[7].strip() for line in lines] == ["yes", "**no**", ""]
