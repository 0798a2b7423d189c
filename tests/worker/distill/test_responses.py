"""The teacher's responses: greedy, in the rows' order, only where they are missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from app.core.errors import Cancelled
from app.core.events import Event
from tests.worker.distill.conftest import PROMPTS
from worker.distill.data import PromptEncoder, Row
from worker.distill.models import SplitModel, load_tokenizer
from worker.distill.responses import Writing, complete, greedy


@pytest.fixture
def encoder(tiny_teacher: Path) -> PromptEncoder:
    return PromptEncoder(load_tokenizer(str(tiny_teacher)), template="chat", eos_ids=frozenset({2}))


def make_writing(lm: SplitModel, encoder: PromptEncoder, *, max_new_tokens: int = 2, **changes: Any) -> Writing:
    settings = greedy(max_new_tokens=max_new_tokens, encoder=encoder, pad_id=0)
    plain: dict[str, Any] = {"batch_size": 1, "emit": lambda event: None, "should_stop": lambda: None}
    generator = torch.Generator()
    return Writing(teacher=lm, encoder=encoder, settings=settings, generator=generator, **plain | changes)


def test_missing_responses_are_the_models_own_greedy_ones(teacher_lm: SplitModel, encoder: PromptEncoder) -> None:
    rows = [Row(i, "", prompt, None, None) for i, prompt in enumerate(PROMPTS, start=1)]
    rows[1] = Row(2, "", PROMPTS[1], "given", (9, 2))
    rows[3] = Row(4, "", PROMPTS[3], "the data's own", None)
    events: list[Event] = []
    writing = make_writing(teacher_lm, encoder, max_new_tokens=6, batch_size=2, emit=events.append)
    completed = complete(rows, writing=writing)
    assert completed[1] is rows[1]
    for row in (completed[0], completed[2], completed[3]):
        expected = teacher_lm.model.generate(
            torch.tensor([row.prompt_ids]), max_new_tokens=6, do_sample=False, eos_token_id=2, pad_token_id=0
        )[0, len(row.prompt_ids) :]
        assert row.response_ids == tuple(expected.tolist())
    assert completed[0].reference == encoder.text(completed[0].response_ids or ())
    assert completed[3].reference == "the data's own"
    assert [(e.done, e.total) for e in events if e.kind == "phase"] == [(2, 3), (3, 3)]


def test_a_stop_is_obeyed_between_batches(teacher_lm: SplitModel, encoder: PromptEncoder) -> None:
    rows = [Row(i, "", prompt, None, None) for i, prompt in enumerate(PROMPTS)]
    with pytest.raises(Cancelled):
        complete(rows, writing=make_writing(teacher_lm, encoder, should_stop=lambda: "cancel"))


@pytest.mark.slow
def test_the_program_completes_a_file(tiny_teacher: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "prompts.jsonl", tmp_path / "rows.jsonl"
    source.write_text("\n".join(json.dumps({"prompt": f"the dog {i}"}) for i in range(5)), encoding="utf-8")
    command = [sys.executable, "-m", "worker.distill.responses", "--teacher", str(tiny_teacher)]
    done = subprocess.run(
        [*command, "--max-new-tokens", "40", "--batch-size", "3", str(source), str(target)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    rows = [json.loads(line) for line in target.read_text(encoding="utf-8").splitlines() if line]
    assert f"{len(rows)} of 5 rows written" in done.stdout
    assert all(row["messages"][0]["content"].startswith("the dog") and row["response"] for row in rows)
