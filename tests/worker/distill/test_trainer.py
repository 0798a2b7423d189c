"""Whole runs on tiny models: they learn, report, stop, repeat, and leave the teacher alone."""

from __future__ import annotations

import copy
import json
import math
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from app.core.errors import Cancelled, DiskFull, NonFiniteLoss, NothingToLearn
from app.core.events import Event, StepDone
from app.core.job_config import DistillConfig
from app.core.recipes import RECIPES
from tests.worker.distill.conftest import MakeConfig
from worker.distill.assembly import assemble
from worker.distill.checkpoint import complete_checkpoints
from worker.distill.export import CARD_NAME, weights_sha256
from worker.distill.keeper import Keeper, Teller
from worker.distill.models import load_model
from worker.distill.trainer import DistilledStudent, Trainer, distill


def run(config: DistillConfig, out: Path, checkpoints: Path | None = None) -> tuple[DistilledStudent, list[Event]]:
    events: list[Event] = []
    student = distill(config, out=out, emit=events.append, should_stop=lambda: None, checkpoints=checkpoints)
    return student, events


def steps_of(events: list[Event]) -> list[StepDone]:
    return [event for event in events if isinstance(event, StepDone)]


def test_a_run_reports_and_leaves_a_student_that_plain_transformers_loads(
    make_config: MakeConfig, tmp_path: Path, tiny_teacher: Path
) -> None:
    teacher_before = weights_sha256(load_model(str(tiny_teacher), device=torch.device("cpu")))
    # One correction per sample: a random teacher's most probable tokens are nothing that held-out rows hold.
    scrg = {"rounds": 1, "position": "largest_kl", "teacher_token": "sample"}
    config = make_config(training={"max_steps": 12, "gradient_accumulation": 2}, scrg=scrg)
    student, events = run(config, tmp_path)
    steps = steps_of(events)
    assert [event.step for event in steps] == list(range(1, 13))
    assert {event.source for event in steps} == {"ground_truth", "fresh", "replay"}
    names = set().union(*(event.metrics for event in steps))
    assert {
        "loss/total",
        "loss/sft",
        "loss/dac_kl",
        "loss/span",
        "dac_kl/kept_mass",
        "dac_kl/lower",
        "dac_kl/upper",
        "scrg/mismatch_rate",
        "scrg/error_position",
        "sampling/phi",
        "sampling/buffer",
        "train/learning_rate",
        "train/grad_norm",
        "time/generate_s",
        "time/scrg_s",
        "time/student_s",
        "time/loss_s",
    } <= names
    assert all(math.isfinite(value) for event in steps for value in event.metrics.values())
    assert all(event.tokens > 0 and event.tokens_per_s > 0 for event in steps)
    assert [event.step for event in events if event.kind == "evaluated"] == [0, 2, 4, 6, 8, 10, 12]
    assert any(event.kind == "correction" for event in events)
    assert sum(event.kind == "sample" for event in events) == 7
    assert events[-1].kind == "exported"
    assert student.metrics["before/eval/kl_ts"] > student.metrics["after/eval/kl_ts"]
    assert {"before/eval/rouge_l", "after/eval/rouge_l", "after/eval/loss"} <= set(student.metrics)

    loaded = AutoModelForCausalLM.from_pretrained(student.folder)
    assert weights_sha256(loaded) == student.weights_sha256
    assert loaded.num_parameters() == student.parameters
    prompt = AutoTokenizer.from_pretrained(student.folder)("the dog", return_tensors="pt")
    assert loaded.generate(**prompt, max_new_tokens=2, do_sample=False).shape == (1, prompt.input_ids.shape[1] + 2)
    assert weights_sha256(load_model(str(tiny_teacher), device=torch.device("cpu"))) == teacher_before


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_trains(recipe: str, make_config: MakeConfig, tmp_path: Path) -> None:
    kind = RECIPES[recipe]["sampling"]["kind"]
    config = make_config(recipe=recipe, sampling={"kind": kind, "max_new_tokens": 6}, training={"max_steps": 2})
    student, events = run(config, tmp_path)
    for loss in config.losses:
        assert math.isfinite(student.metrics[f"after/eval/loss/{loss.kind}"])
    assert all(event.metrics["train/grad_norm"] > 0 for event in steps_of(events))
    writing = [event for event in events if event.kind == "phase" and event.phase == "teacher_responses"]
    rows = len(config.data.path.read_text().splitlines())
    assert {event.total for event in writing} == ({rows} if recipe == "seqkd" else set())


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(make_config: MakeConfig, tmp_path: Path) -> None:
    weights = [
        run(make_config(training={"seed": seed}), tmp_path / str(i))[0].weights_sha256
        for i, seed in enumerate((0, 0, 1))
    ]
    assert weights[0] == weights[1] != weights[2]


@pytest.mark.parametrize("change", [{"logits": "whole"}, {"batch_size": 2, "gradient_accumulation": 2}])
def test_chunking_and_micro_batches_do_not_change_the_student(
    make_config: MakeConfig, tmp_path: Path, change: dict[str, Any]
) -> None:
    """Ground-truth batches: the same rows in the same order, however they are cut."""
    students = []
    for i, training in enumerate(({}, change)):
        config = make_config(sampling={"kind": "ground_truth", "max_new_tokens": 10}, training=training)
        folder = run(config, tmp_path / str(i))[0].folder
        students.append(AutoModelForCausalLM.from_pretrained(folder).state_dict())
    for name, value in students[0].items():
        torch.testing.assert_close(students[1][name], value, atol=2e-5, rtol=1e-3)


def test_fine_tuning_runs_no_teacher_pass(make_config: MakeConfig, tmp_path: Path) -> None:
    sampling = {"kind": "ground_truth", "max_new_tokens": 10}
    for losses, passes in (([{"kind": "sft"}], False), ([{"kind": "forward_kl"}], True)):
        _, events = run(make_config(sampling=sampling, losses=losses), tmp_path)
        assert all(("time/teacher_s" in event.metrics) == passes for event in steps_of(events))


def test_bfloat16_compute_keeps_float32_master_weights(make_config: MakeConfig, tmp_path: Path) -> None:
    student, events = run(make_config(training={"precision": "bfloat16"}), tmp_path)
    assert AutoModelForCausalLM.from_pretrained(student.folder).dtype == torch.float32
    assert next(event for event in events if event.kind == "started").precision == "bfloat16"
    assert student.metrics["after/eval/kl_ts"] < student.metrics["before/eval/kl_ts"]


def test_subnetwork_learns_and_is_dropped_from_the_student(make_config: MakeConfig) -> None:
    config, tell = make_config(), Teller(lambda event: None)
    keeper = Keeper(None, config=config, tell=tell)
    assembled = assemble(config, emit=tell, should_stop=lambda: None, keeper=keeper)
    before = copy.deepcopy(assembled.objective.state_dict())
    assert before
    Trainer(assembled, keeper=keeper, emit=tell, should_stop=lambda: None).train()
    assert any(not torch.equal(before[name], value) for name, value in assembled.objective.state_dict().items())
    assert not any("losses" in name for name, _ in assembled.student.model.named_parameters())


def test_cancel_acts_at_the_next_step_boundary(make_config: MakeConfig, tmp_path: Path) -> None:
    events: list[Event] = []
    with pytest.raises(Cancelled, match="after step 2 of 4"):
        distill(
            make_config(),
            out=tmp_path,
            emit=events.append,
            should_stop=lambda: "cancel" if len(steps_of(events)) >= 2 else None,
        )
    assert len(steps_of(events)) == 2
    assert list(tmp_path.iterdir()) == []


AWAY: dict[str, Any] = {
    "losses": [{"kind": "sft"}],
    "scrg": {"rounds": 0},
    "sampling": {"kind": "ground_truth", "max_new_tokens": 10},
    "training": {"max_steps": 6, "learning_rate": 0.01, "schedule": "constant"},
}


@pytest.mark.parametrize("select", ["best", "last"])
def test_the_student_is_that_of_the_chosen_step(select: str, make_config: MakeConfig, tmp_path: Path) -> None:
    """Fine-tuning, which leads away from the teacher. With checkpoints or without, the same student is left."""
    config = make_config(**AWAY, evaluation={"every_steps": 1, "select": select})
    students = []
    for name, checkpoints in (("memory", None), ("disk", tmp_path / "checkpoints")):
        student, events = run(config, tmp_path / name, checkpoints)
        evaluated = {event.step: event.metrics for event in events if event.kind == "evaluated"}
        best = min((step for step in evaluated if step), key=lambda step: evaluated[step]["eval/kl_ts"])
        assert best != 6, "this run does not get worse"
        assert student.step == (best if select == "best" else 6)
        assert {name: student.metrics[f"after/{name}"] for name in evaluated[best]} == evaluated[student.step]
        assert events[-1].kind == "exported"
        assert (events[-1].step, events[-1].weights_sha256) == (student.step, student.weights_sha256)
        card = json.loads((student.folder / CARD_NAME).read_text())
        assert (card["step"], card["chosen_by"]) == (student.step, "kl_ts" if select == "best" else "last step")
        students.append(student)
    assert students[0].weights_sha256 == students[1].weights_sha256
    assert students[0].metrics == students[1].metrics
    kept = {info.step for info in complete_checkpoints(tmp_path / "checkpoints")}
    assert kept == ({best, 6} if select == "best" else {6})
    again = make_config(student={"kind": "checkpoint", "model": str(students[1].folder)}, evaluation={"select": "last"})
    measured = run(again, tmp_path / "again")[0].metrics
    for name in ("eval/kl_ts", "eval/rouge_l"):
        assert measured[f"before/{name}"] == pytest.approx(students[1].metrics[f"after/{name}"], rel=1e-6)


def test_a_lost_best_is_said_and_the_last_is_taken(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(**AWAY, evaluation={"every_steps": 1})
    events: list[Event] = []

    def damage_the_best(event: Event) -> None:
        events.append(event)
        if event.kind == "evaluated" and event.step == 6:
            (best,) = [info for info in complete_checkpoints(tmp_path / "checkpoints") if info.best]
            (best.path / "weights.safetensors").unlink()

    student = distill(
        config,
        out=tmp_path / "out",
        emit=damage_the_best,
        should_stop=lambda: None,
        checkpoints=tmp_path / "checkpoints",
    )
    assert student.step == 6
    assert [event.code for event in events if event.kind == "warning"] == ["best_lost"]
    last = [event.metrics for event in events if event.kind == "evaluated"][-1]
    assert {name: student.metrics[f"after/{name}"] for name in last} == last


def test_a_full_disk_loses_nothing(make_config: MakeConfig, tmp_path: Path) -> None:
    """The process may write no file larger than its first checkpoint's; later ones hold replayed samples too."""
    config = make_config(
        sampling={"buffer_size": 10_000, "phi_start": 1.0},
        training={"max_steps": 8, "checkpoint_every": 2},
        evaluation={"select": "last", "every_steps": 100},
    )
    checkpoints = tmp_path / "checkpoints"
    events: list[Event] = []

    def limit(event: Event) -> None:
        events.append(event)
        if event.kind == "checkpoint" and event.step == 4:
            largest = max(path.stat().st_size for path in (checkpoints / "step-00000004").iterdir())
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest - 1, hard))

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(DiskFull, match="checkpoint of training step 6 was being written"):
            distill(config, out=tmp_path / "out", emit=limit, should_stop=lambda: None, checkpoints=checkpoints)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(path.name for path in checkpoints.iterdir()) == ["step-00000002", "step-00000004"]
    student = run(config, tmp_path / "out", checkpoints)[0]
    assert student.weights_sha256 == run(config, tmp_path / "other")[0].weights_sha256


def test_scrg_that_never_ran_is_said(make_config: MakeConfig, tmp_path: Path) -> None:
    _, events = run(make_config(sampling={"phi_start": 0.0}), tmp_path)
    assert [event.code for event in events if event.kind == "warning"] == ["scrg_never_ran"]


def test_a_batch_in_which_nothing_counts_fails_loudly(make_config: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(NothingToLearn):
        run(
            make_config(
                sampling={"kind": "ground_truth", "max_new_tokens": 1},
                losses=[{"kind": "span"}],
                data={"max_response_tokens": 1},
            ),
            tmp_path,
        )


def test_a_loss_that_is_not_finite_names_step_and_term(make_config: MakeConfig, tmp_path: Path) -> None:
    training = {"learning_rate": 1e30, "warmup_fraction": 0.0, "max_steps": 8}
    with pytest.raises(NonFiniteLoss, match=r"step \d+: .*(loss/|gradient of)"):
        run(make_config(training=training), tmp_path)
    training |= {"checkpoint_every": 1}
    with pytest.raises(NonFiniteLoss, match=r"step 2: .*; the checkpoint of training step 1 is kept"):
        run(make_config(training=training, evaluation={"every_steps": 100}), tmp_path, tmp_path / "checkpoints")
    assert [info.step for info in complete_checkpoints(tmp_path / "checkpoints")] == [1]


@pytest.mark.gpu
def test_the_same_path_on_an_accelerator(make_config: MakeConfig, tmp_path: Path) -> None:
    if not torch.cuda.is_available() and not torch.backends.mps.is_available():
        pytest.skip("no accelerator")
    student, events = run(make_config(training={"precision": "auto"}), tmp_path)
    assert next(event for event in events if event.kind == "started").device != "cpu"
    assert student.metrics["after/eval/kl_ts"] < student.metrics["before/eval/kl_ts"]
