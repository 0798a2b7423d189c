"""What a run keeps is used by that run alone: other settings and other rows are refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from app.core.errors import CheckpointMismatch
from app.core.events import CheckpointSaved, Evaluated, Event, PhaseProgress, Resumed, Warned
from tests.worker.distill.conftest import MakeConfig
from worker.distill.data import Row
from worker.distill.keeper import Keeper, Teller

ROWS = [Row(1, "a", (1, 2), "b", (3,)), Row(2, "c", (4,), None, None)]
CPU = torch.device("cpu")


def keep(folder: Path, config: Any, events: list[Event], *, step: int = 3) -> tuple[nn.Linear, list[float]]:
    """A run of one checkpoint; its model and the random numbers that follow the checkpoint."""
    tell = Teller(events.append)
    keeper = Keeper(folder, config=config, tell=tell)
    keeper.identify(ROWS, device=CPU, dtype=torch.float32)
    tell(Evaluated(step=step, metrics={}))
    model = nn.Linear(2, 2)
    keeper.save("training", step, model, {"x": torch.tensor(5.0)}, best_step=step)
    keeper.save("training", step, model, {"x": torch.tensor(5.0)}, best_step=step)  # is there already
    return model, torch.rand(3).tolist()


def test_a_run_goes_on_where_it_was(make_config: MakeConfig, tmp_path: Path) -> None:
    config, events = make_config(), []
    model, numbers = keep(tmp_path, config, events)
    (saved,) = [event for event in events if isinstance(event, CheckpointSaved)]
    assert (saved.step, saved.best, saved.phase) == (3, True, "training")
    assert saved.bytes == sum(path.stat().st_size for path in (tmp_path / "step-00000003").iterdir())

    events.clear()
    tell, other = Teller(events.append), nn.Linear(2, 2)
    free = config.training.model_copy(update={"checkpoint_every": 7, "keep_last": 9})
    keeper = Keeper(tmp_path, config=config.model_copy(update={"training": free}), tell=tell)
    keeper.identify(ROWS, device=CPU, dtype=torch.float32)
    assert keeper.is_behind("student_sft")
    assert not keeper.is_behind("training")
    assert keeper.restore("student_sft", other) is None
    found = keeper.restore("training", other)
    assert found is not None
    assert found[0] == 3
    assert float(found[1]["x"]) == 5
    assert torch.rand(3).tolist() == numbers
    assert torch.equal(other.weight, model.weight)
    assert events == [Resumed(step=3, training_events=1)]
    assert tell.training_events == 1
    best = keeper.best_weights(3)
    assert best is not None
    assert torch.equal(best["weight"], model.weight)
    assert keeper.best_weights(2) is None
    assert keeper.kept() == "; the checkpoint of training step 3 is kept"


def test_other_settings_are_refused_by_name(make_config: MakeConfig, tmp_path: Path) -> None:
    keep(tmp_path, make_config(), [])
    changed = make_config(training={"learning_rate": 0.5, "seed": 9})
    with pytest.raises(CheckpointMismatch) as caught:
        Keeper(tmp_path, config=changed, tell=Teller(lambda event: None))
    assert caught.value.field == "training.learning_rate"
    assert "training.learning_rate was 0.001 and is 0.5; training.seed was 0 and is 9" in caught.value.message
    losses = make_config(losses=[{"kind": "sft"}, {"kind": "dac_kl", "top_k": 8}, {"kind": "span"}])
    with pytest.raises(CheckpointMismatch, match=r"losses.1.top_k was 256 and is 8"):
        Keeper(tmp_path, config=losses, tell=Teller(lambda event: None))


def test_a_setting_that_is_new_was_at_its_default(make_config: MakeConfig, tmp_path: Path) -> None:
    """What an older version kept goes on, unless the new setting is to be something else."""
    keep(tmp_path, make_config(), [])
    path = tmp_path / "step-00000003/manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["config"]["training"]["bucket_by_length"]
    path.write_text(json.dumps(manifest))
    assert Keeper(tmp_path, config=make_config(), tell=Teller(lambda event: None)).last is not None
    with pytest.raises(CheckpointMismatch, match="bucket_by_length was False and is True"):
        Keeper(tmp_path, config=make_config(training={"bucket_by_length": True}), tell=Teller(lambda event: None))


def test_other_rows_are_refused_and_another_place_of_the_same_is_not(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config()
    keep(tmp_path, config, [])
    moved = config.model_copy(update={"data": config.data.model_copy(update={"path": Path("elsewhere.jsonl")})})
    keeper = Keeper(tmp_path, config=moved, tell=Teller(lambda event: None))
    keeper.identify(ROWS, device=CPU, dtype=torch.float32)
    for rows in (ROWS[:1], [ROWS[0], replace(ROWS[1], prompt_ids=(5,))], [replace(ROWS[0], reference="x"), ROWS[1]]):
        with pytest.raises(CheckpointMismatch, match="data: the rows are not those"):
            keeper.identify(rows, device=CPU, dtype=torch.float32)


def test_another_machine_is_said(make_config: MakeConfig, tmp_path: Path) -> None:
    keep(tmp_path, make_config(), [])
    events: list[Event] = []
    keeper = Keeper(tmp_path, config=make_config(), tell=Teller(events.append))
    keeper.identify(ROWS, device=torch.device("cuda"), dtype=torch.bfloat16)
    (warning,) = events
    assert isinstance(warning, Warned)
    assert warning.code == "resumed_elsewhere"
    assert "device cpu, precision float32 and goes on with" in warning.message


def test_a_skipped_checkpoint_is_an_event_of_no_step(make_config: MakeConfig, tmp_path: Path) -> None:
    keep(tmp_path, make_config(), [])
    (tmp_path / "step-00000003" / "state.json").write_text("{}")
    events: list[Event] = []
    keeper = Keeper(tmp_path, config=make_config(), tell=Teller(events.append))
    assert [(event.kind, event.code, event.step) for event in events if isinstance(event, Warned)] == [
        ("warning", "checkpoint_skipped", None)
    ]
    assert keeper.restore("training", nn.Linear(2, 2)) is None
    assert keeper.kept() == ""


def test_without_a_folder_only_the_best_weights_are_remembered(make_config: MakeConfig) -> None:
    events: list[Event] = []
    keeper = Keeper(None, config=make_config(), tell=Teller(events.append))
    keeper.identify(ROWS, device=CPU, dtype=torch.float32)
    model = nn.Linear(2, 2)
    keeper.remember(model)
    before = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.zero_()
    weights = keeper.best_weights(1)
    assert weights is not None
    assert torch.equal(weights["weight"], before)
    keeper.save("training", 1, model, {})
    assert (keeper.restore("training", model), keeper.responses(), keeper.tuned_teacher()) == (None, None, None)
    assert events == []


def test_the_teller_counts_the_runs_own_course() -> None:
    told: list[Event] = []
    tell = Teller(told.append)
    events = [PhaseProgress(phase="training"), Evaluated(step=1, metrics={}), Warned(code="x", message="y")]
    events += [Warned(code="x", message="y", step=1), Resumed(step=1, training_events=0)]
    for event in events:
        tell(event)
    assert (told, tell.training_events) == (events, 2)
