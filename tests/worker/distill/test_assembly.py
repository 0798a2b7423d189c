"""What is refused before training, and that what is assembled fits together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from app.core.errors import BadDataset, Cancelled, ContextTooShort, ModelNotFound, TooManyLayers, VocabularyMismatch
from app.core.events import Event
from tests.tiny_models import make_tiny_model, write_rows
from tests.worker.distill.conftest import MakeConfig
from worker.distill.assembly import LOGITS_PER_CHUNK, Assembly, assemble, ground_truth


def load(config: Any, events: list[Event] | None = None, *, stop: bool = False) -> Assembly:
    return assemble(config, emit=(events if events is not None else []).append, should_stop=lambda: stop)


def test_everything_fits_together(make_config: MakeConfig) -> None:
    events: list[Event] = []
    run = load(make_config(), events)
    assert len(run.train_rows) == 18
    assert len(run.held_out.rows) == 6
    assert run.student.model is not run.teacher.model
    assert not any(p.requires_grad for p in run.teacher.model.parameters())
    assert all(p.requires_grad for p in run.student.model.parameters())
    assert run.spans is not None
    assert run.chunk_positions == LOGITS_PER_CHUNK[run.device.type] // 320
    started = events[-1]
    assert started.kind == "started"
    assert started.teacher_parameters > started.student_parameters > 0
    batch = run.batch(ground_truth(run.train_rows[:2]))
    assert batch.num_positions == sum(len(row.response_ids or ()) for row in run.train_rows[:2])


def test_losses_without_spans_need_no_chunker(make_config: MakeConfig) -> None:
    assert load(make_config(losses=[{"kind": "forward_kl"}])).spans is None


def test_whole_logits_are_the_plain_path(make_config: MakeConfig) -> None:
    run = load(make_config(training={"logits": "whole"}))
    assert (run.student.is_split, run.teacher.is_split, run.chunk_positions) == (False, False, None)


def test_rows_without_response_get_the_teachers(make_config: MakeConfig, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", 9, with_response=False)
    events: list[Event] = []
    run = load(make_config(data={"path": str(path), "dev_rows": 2, "max_response_tokens": 5}), events)
    assert all(row.response_ids and len(row.response_ids) <= 5 for row in [*run.train_rows, *run.held_out.rows])
    assert [e.done for e in events if e.kind == "phase" and e.phase == "teacher_responses"] == [4, 8, 9]


def test_vocabularies_that_differ_by_padding_are_cut(make_config: MakeConfig, tmp_path: Path) -> None:
    padded = make_tiny_model(tmp_path / "padded", pad_vocabulary_to=384, seed=8)
    run = load(make_config(student={"kind": "checkpoint", "model": str(padded)}))
    assert run.student.vocabulary_size == run.teacher.vocabulary_size == 320
    assert run.student.head(run.student.hidden(torch.tensor([[3]]))).shape[-1] == 320


def test_bad_input_is_refused_with_the_field_and_the_cure(
    make_config: MakeConfig, tmp_path: Path, tiny_rows: Path
) -> None:
    other = make_tiny_model(tmp_path / "other", extra_tokens=["<extra>"], seed=9)
    short = tmp_path / "short.jsonl"
    short.write_text("\n".join(tiny_rows.read_text().splitlines()[:5]))
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    blank = tmp_path / "blank.jsonl"
    blank.write_text(json.dumps({"messages": [{"role": "user", "content": ""}], "response": None}))
    cases: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ModelNotFound, "teacher", {"teacher": {"model": str(tmp_path / "nowhere")}}),
        (TooManyLayers, "layers", {"student": {"layers": 5}}),
        (VocabularyMismatch, "320 tokens.*not the same", {"student": {"kind": "checkpoint", "model": str(other)}}),
        (ContextTooShort, "max_new_tokens", {"sampling": {"max_new_tokens": 256}}),
        (ContextTooShort, "row ", {"sampling": {"max_new_tokens": 245}}),
        (BadDataset, "dev_rows", {"data": {"path": str(short)}}),
        (BadDataset, "no rows", {"data": {"path": str(empty)}}),
        (BadDataset, "row 1", {"data": {"path": str(blank)}}),
    ]
    for error, words, changes in cases:
        with pytest.raises(error, match=words):
            load(make_config(**changes))


def test_a_stop_is_obeyed_while_loading(make_config: MakeConfig) -> None:
    with pytest.raises(Cancelled):
        load(make_config(), stop=True)


def test_unanswered_rows_alone_need_the_students_samples(make_config: MakeConfig, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "bare.jsonl", with_response=False)
    data = {"path": str(rows), "responses": "student"}
    with pytest.raises(BadDataset, match="no training row has a response") as caught:
        assemble(make_config(data=data), emit=lambda event: None, should_stop=lambda: None)
    assert caught.value.field == "data.responses"
    on_policy = make_config(data=data, sampling={"kind": "on_policy", "max_new_tokens": 4})
    run = assemble(on_policy, emit=lambda event: None, should_stop=lambda: None)
    assert all(row.response_ids is None for row in run.train_rows)
