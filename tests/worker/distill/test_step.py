"""A step that cannot be taken says which term is to blame, and leaves the weights as they were."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from app.core.errors import NonFiniteLoss
from tests.tiny_models import write_rows
from tests.worker.distill.conftest import MakeConfig
from worker.distill.assembly import assemble
from worker.distill.export import weights_sha256
from worker.distill.step import Stepper


@pytest.mark.parametrize(
    ("weights", "blamed"),
    [
        ({"sft": 1e25, "forward_kl": 1.0}, r"the gradient of sft alone is not either"),
        ({"sft": 1.0, "forward_kl": 1e25}, r"the gradient of forward_kl alone is not either"),
        ({"sft": 1e25, "forward_kl": 1e25}, r"the gradient of sft and forward_kl alone is not either"),
    ],
)
def test_the_terms_with_a_bad_gradient_are_named(
    weights: dict[str, float], blamed: str, make_config: MakeConfig
) -> None:
    """Losses that float32 holds, with gradients whose norm it does not hold."""
    config = make_config(
        losses=[{"kind": kind, "weight": weight} for kind, weight in weights.items()],
        sampling={"kind": "ground_truth", "max_new_tokens": 4},
        training={"gradient_accumulation": 2},
    )
    run = assemble(config, emit=lambda event: None, should_stop=lambda: None)
    before = weights_sha256(run.student.model)
    with pytest.raises(NonFiniteLoss, match=r"step 5: the gradient is not finite.*" + blamed):
        Stepper(run).take(5)
    assert weights_sha256(run.student.model) == before


def test_a_diverged_student_is_named_by_its_loss_though_rows_are_looked_at_first(make_config: MakeConfig) -> None:
    config = make_config(
        losses=[{"kind": "forward_kl"}],
        sampling={"kind": "ground_truth", "max_new_tokens": 4, "candidates": 2, "skip_known": True},
    )
    run = assemble(config, emit=lambda event: None, should_stop=lambda: None)
    with torch.no_grad():
        for parameter in run.student.model.parameters():
            parameter.mul_(1e19)
    run.sampler.refresh()
    with pytest.raises(NonFiniteLoss, match=r"step 1: .*training\.learning_rate"):
        Stepper(run).take(1)


def test_rows_without_a_response_are_prompts_of_the_students_samples_only(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    lines = write_rows(tmp_path / "rows.jsonl", 24).read_text().splitlines()
    bare = write_rows(tmp_path / "bare.jsonl", 24, with_response=False).read_text().splitlines()
    (tmp_path / "some.jsonl").write_text("\n".join([*lines[:8], *bare[8:]]) + "\n")
    config = make_config(
        data={"path": str(tmp_path / "some.jsonl"), "responses": "student", "dev_rows": 4},
        sampling={"phi_start": 0.5},
        training={"max_steps": 30, "batch_size": 6},
    )
    run = assemble(config, emit=lambda event: None, should_stop=lambda: None)
    answered = {row.prompt_ids for row in run.train_rows if row.response_ids is not None}
    assert len(answered) < len({row.prompt_ids for row in run.train_rows})
    assert all(row.response_ids for row in run.held_out.rows)
    stepper = Stepper(run)
    seen: dict[str, set[bool]] = {}
    for step in range(1, 16):
        (drawn,) = stepper.take(step).window
        for row in drawn.batch.input_ids_BT.tolist():
            seen.setdefault(drawn.source, set()).add(any(tuple(row[: len(ids)]) == ids for ids in answered))
    assert seen["ground_truth"] == {True}
    assert seen["fresh"] == {True, False}


@pytest.mark.parametrize(("kind", "source"), [("on_policy", "fresh"), ("ground_truth", "ground_truth")])
def test_of_several_candidates_a_batch_takes_its_size(
    kind: str, source: str, make_config: MakeConfig, tmp_path: Path
) -> None:
    config = make_config(
        data={"path": str(write_rows(tmp_path / "rows.jsonl", 34)), "dev_rows": 4},
        sampling={"kind": kind, "candidates": 3},
        training={"max_steps": 3, "batch_size": 6},
    )
    run = assemble(config, emit=lambda event: None, should_stop=lambda: None)
    stepper = Stepper(run)
    (drawn,) = stepper.take(1).window
    assert drawn.source == source
    assert len(drawn.batch.input_ids_BT) == 6
    assert len(stepper.state()["rows"]["order"]["waiting"]) == 30 - 3 * 6
    assert stepper.clock.take()["choice"] > 0
