"""Checkpoints are listed when complete, used when whole, and removed when older than those to keep."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from app.core.errors import DiskFull
from app.core.events import TrainedPhase
from worker.distill.checkpoint import MANIFEST, CheckpointFolder, Moment, complete_checkpoints


def save(
    folder: CheckpointFolder, step: int, *, best: int | None = None, phase: TrainedPhase = "training", size: int = 100
) -> None:
    def write(path: Path) -> None:
        (path / "weights").write_bytes(bytes([step % 256]) * size)
        (path / "state").write_text(f"state of step {step}")

    moment = Moment(phase=phase, step=step, training_events=3 * step, best_step=best)
    info = folder.save(moment, about={"config": {"seed": 1}}, needed_bytes=size, write=write)
    assert (info.moment, info.path.name) == (moment, moment.name)


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def untold(why: str) -> None:
    raise AssertionError(why)


def test_a_checkpoint_says_what_it_is_of(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "c", keep_last=2)
    assert folder.newest(skipped=untold) is None
    save(folder, 7, best=7)
    (info,) = complete_checkpoints(tmp_path / "c")
    assert (info.step, info.phase, info.best, info.path) == (7, "training", True, tmp_path / "c/step-00000007")
    assert info.bytes == sum(path.stat().st_size for path in info.path.iterdir())
    assert info.manifest["config"] == {"seed": 1}
    assert folder.newest(skipped=untold) == info


def test_the_last_and_the_best_that_each_of_them_knows_are_kept(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep_last=2)
    for step, best in [(10, None), (20, 20), (30, 20), (40, 20), (50, 50)]:
        save(folder, step, best=best)
    assert names(tmp_path) == ["step-00000020", "step-00000040", "step-00000050"]  # 40 falls back on 20
    assert [info.step for info in complete_checkpoints(tmp_path) if info.best] == [50]
    save(folder, 60, best=50)
    assert names(tmp_path) == ["step-00000050", "step-00000060"]
    found = folder.after(50)
    assert found is not None
    assert found.step == 50
    assert folder.after(40) is None


def test_phases_follow_each_other(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep_last=2)
    save(folder, 90, phase="teacher_sft")
    save(folder, 5, phase="student_sft")
    save(folder, 1)
    assert [(info.phase, info.step) for info in complete_checkpoints(tmp_path)] == [("student_sft", 5), ("training", 1)]


def drop_manifest(path: Path) -> None:
    (path / MANIFEST).unlink()


def cut_manifest(path: Path) -> None:
    text = (path / MANIFEST).read_text()
    (path / MANIFEST).write_text(text[: len(text) // 2])


def cut_file(path: Path) -> None:
    (path / "weights").write_bytes((path / "weights").read_bytes()[:-1])


def drop_file(path: Path) -> None:
    (path / "state").unlink()


def flip_a_bit(path: Path) -> None:
    raw = bytearray((path / "weights").read_bytes())
    raw[50] ^= 1
    (path / "weights").write_bytes(raw)


def claim_another_step(path: Path) -> None:
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["moment"]["step"] = 99
    (path / MANIFEST).write_text(json.dumps(manifest))


def come_from_the_future(path: Path) -> None:
    manifest = json.loads((path / MANIFEST).read_text())
    (path / MANIFEST).write_text(json.dumps(manifest | {"format": 2}))


@pytest.mark.parametrize(
    "damage",
    [drop_manifest, cut_manifest, cut_file, drop_file, flip_a_bit, claim_another_step, come_from_the_future],
    ids=lambda damage: damage.__name__,
)
def test_a_damaged_checkpoint_is_skipped_and_said(damage: Callable[[Path], None], tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep_last=3)
    for step in (1, 2, 3):
        save(folder, step)
    damage(tmp_path / "step-00000003")
    said: list[str] = []
    found = folder.newest(skipped=said.append)
    assert found is not None
    assert found.step == 2
    assert len(said) == 1
    assert "step-00000003 is skipped" in said[0]
    assert folder.newest(skipped=untold) == found  # said once
    save(folder, 3)
    assert names(tmp_path) == ["step-00000001", "step-00000002", "step-00000003"]


def test_no_space_removes_nothing(tmp_path: Path) -> None:
    free = [10**9]
    folder = CheckpointFolder(tmp_path, keep_last=1, free=lambda path: free[0])
    save(folder, 1)
    free[0] = 500
    with pytest.raises(DiskFull, match="checkpoint of training step 2 needs"):
        save(folder, 2)
    assert names(tmp_path) == ["step-00000001"]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep_last=1)
    save(folder, 1)

    def write(path: Path) -> None:
        (path / "weights").touch()
        raise OSError(5, "input/output error")

    with pytest.raises(OSError, match="input/output"):
        folder.save(Moment(phase="training", step=2), about={}, needed_bytes=1, write=write)
    assert names(tmp_path) == ["step-00000001"]


def test_listing_loads_no_torch() -> None:
    code = "import sys, worker.distill.checkpoint; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
