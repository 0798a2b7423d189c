"""Both models learn the data's own responses before distillation; whatever reads the teacher reads the tuned one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from app.core.errors import BadDataset, Cancelled, NonFiniteLoss
from app.core.events import Event, PhaseProgress
from app.core.job_config import DistillConfig
from tests.tiny_models import write_rows
from tests.worker.distill.conftest import MakeConfig
from worker.distill.assembly import Assembly, assemble
from worker.distill.data import ground_truth
from worker.distill.export import weights_sha256
from worker.distill.models import SplitModel, load_model
from worker.distill.trainer import distill
from worker.distill.types import Stop


def assembled(config: DistillConfig) -> tuple[Assembly, list[Event]]:
    events: list[Event] = []
    return assemble(config, emit=events.append, should_stop=lambda: None), events


def cross_entropy(run: Assembly, lm: SplitModel) -> float:
    """Mean over the tokens of the training rows."""
    batch = run.batch(ground_truth(run.train_rows))
    with torch.no_grad():
        logits = lm.model(input_ids=batch.input_ids_BT, attention_mask=batch.attention_mask_BT).logits
    return float(torch.nn.functional.cross_entropy(batch.predicting(logits).float(), batch.labels_N))


def test_both_phases_lower_the_cross_entropy_and_are_told(make_config: MakeConfig) -> None:
    cold, _ = assembled(make_config())
    warm, events = assembled(
        make_config(warmup={"teacher_sft_steps": 4, "student_sft_steps": 3, "learning_rate": 0.01})
    )
    assert cross_entropy(warm, warm.teacher) < cross_entropy(cold, cold.teacher) - 0.3
    assert cross_entropy(warm, warm.student) < cross_entropy(cold, cold.student) - 0.3
    assert cross_entropy(warm, warm.sampler.lm) == cross_entropy(warm, warm.student)
    told = [event for event in events if isinstance(event, PhaseProgress) and event.phase.endswith("_sft")]
    assert [(event.phase, event.done, event.total) for event in told] == [
        *[("teacher_sft", done, 4) for done in range(5)],
        *[("student_sft", done, 3) for done in range(4)],
    ]
    assert not any(parameter.requires_grad for parameter in warm.teacher.model.parameters())
    assert all(parameter.requires_grad for parameter in warm.student.model.parameters())


def test_a_student_of_the_teachers_layers_is_cut_from_the_tuned_one(make_config: MakeConfig) -> None:
    run, _ = assembled(make_config(student={"layers": 4}, warmup={"teacher_sft_steps": 2}))
    assert weights_sha256(run.student.model) == weights_sha256(run.teacher.model)


def test_the_tuned_teacher_stays_untouched_and_is_left_for_comparing(
    make_config: MakeConfig, tiny_teacher: Path, tmp_path: Path
) -> None:
    config = make_config(warmup={"teacher_sft_steps": 2, "learning_rate": 0.01})
    tuned = weights_sha256(assembled(config)[0].teacher.model)
    for name, checkpoints in (("a", None), ("b", tmp_path / "kept")):
        student = distill(
            config, out=tmp_path / name, emit=lambda event: None, should_stop=lambda: None, checkpoints=checkpoints
        )
        assert student.teacher_folder == tmp_path / name / "teacher"
        loaded = AutoModelForCausalLM.from_pretrained(student.teacher_folder)
        original = weights_sha256(load_model(str(tiny_teacher), device=torch.device("cpu")))
        assert weights_sha256(loaded) == tuned != original


def test_no_teacher_folder_without_tuning(make_config: MakeConfig, tmp_path: Path) -> None:
    student = distill(make_config(), out=tmp_path, emit=lambda event: None, should_stop=lambda: None)
    assert student.teacher_folder is None
    assert [path.name for path in tmp_path.iterdir()] == ["student"]


def test_the_teacher_writes_responses_after_its_tuning(make_config: MakeConfig) -> None:
    """They are trained on; the data's own responses are what both models are tuned on, also then."""
    teacher = {"data": {"responses": "teacher"}}
    cold, _ = assembled(make_config(**teacher))
    warm, events = assembled(make_config(**teacher, warmup={"teacher_sft_steps": 6, "learning_rate": 0.01}))
    assert [row.response_ids for row in warm.train_rows] != [row.response_ids for row in cold.train_rows]
    phases = [event.phase for event in events if isinstance(event, PhaseProgress)]
    assert max(i for i, phase in enumerate(phases) if phase == "teacher_sft") < phases.index("teacher_responses")


def test_rows_without_responses_cannot_be_tuned_on(make_config: MakeConfig, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", with_response=False)
    for phase in ("teacher_sft", "student_sft"):
        with pytest.raises(BadDataset, match=f"warmup.{phase}_steps: no training row has a response"):
            assembled(make_config(data={"path": str(path)}, warmup={f"{phase}_steps": 1}))
    dev_only = [json.loads(line) for line in path.read_text().splitlines()]
    dev_only[-1]["response"] = "a dog"
    path.write_text("\n".join(map(json.dumps, dev_only)))
    with pytest.raises(BadDataset, match="no training row"):
        assembled(make_config(data={"path": str(path)}, warmup={"teacher_sft_steps": 1}))


def test_a_cancel_acts_within_a_phase(make_config: MakeConfig) -> None:
    events: list[Event] = []

    def should_stop() -> Stop | None:
        return "cancel" if PhaseProgress(phase="teacher_sft", done=2, total=9) in events else None

    with pytest.raises(Cancelled, match="after step 2 of 9 of teacher_sft"):
        assemble(make_config(warmup={"teacher_sft_steps": 9}), emit=events.append, should_stop=should_stop)


def test_a_warm_up_that_explodes_names_phase_and_step(make_config: MakeConfig) -> None:
    config = make_config(warmup={"student_sft_steps": 9, "learning_rate": 1e30}, training={"warmup_fraction": 0.0})
    with pytest.raises(NonFiniteLoss, match=r"warmup.learning_rate: student_sft step \d: "):
        assembled(config)
