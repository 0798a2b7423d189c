"""Folders appear whole or not at all; a disk that is full is said with numbers, and nothing of the attempt is left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.core.errors import DiskFull
from worker.distill.disk import UNFINISHED, free_bytes, need_space, new_folder, remove_folder, remove_unfinished


def test_a_new_folder_replaces_the_old_one_whole(tmp_path: Path) -> None:
    target = tmp_path / "a" / "target"
    for text in ("old", "new"):
        with new_folder(target, "it") as folder:
            (folder / text).write_text(text)
            (folder / "inner").mkdir()
    assert sorted(path.name for path in target.iterdir()) == ["inner", "new"]
    assert [path.name for path in target.parent.iterdir()] == ["target"]
    assert os.stat(target).st_mode & 0o777 == 0o755


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with new_folder(target, "it") as folder:
        (folder / "old").touch()
    with pytest.raises(FileNotFoundError), new_folder(target, "it") as folder:
        (folder / "no such folder" / "new").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    assert [path.name for path in target.iterdir()] == ["old"]


def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / f"{UNFINISHED}step-1-xyz").mkdir()
    (tmp_path / f"{UNFINISHED}step-1-xyz" / "half").touch()
    (tmp_path / "step-0").mkdir()
    remove_unfinished(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-0"]
    remove_folder(tmp_path / "step-0")
    remove_folder(tmp_path / "step-0")
    assert list(tmp_path.iterdir()) == []


def test_too_little_space_is_said_with_numbers(tmp_path: Path) -> None:
    need_space(3 * 2**20, tmp_path, "the checkpoint", free=lambda folder: 3 * 2**20)
    with pytest.raises(DiskFull, match=r"the checkpoint needs 4 MiB, and .* has 3 MiB free.* make space") as caught:
        need_space(4 * 2**20, tmp_path, "the checkpoint", free=lambda folder: 3 * 2**20)
    assert caught.value.code == "disk_full"
    assert free_bytes(tmp_path) > 0


FILL = """
import sys, pathlib, torch
from safetensors.torch import save_file
from app.core.errors import DiskFull
from worker.distill.disk import new_folder
root = pathlib.Path(sys.argv[1])
with new_folder(root / "target", "it") as folder:
    (folder / "old").write_text("old")
def plain(folder): (folder / "big").write_bytes(bytes(4_000_000))
def tensors(folder): save_file({"a": torch.zeros(1_000_000)}, folder / "big")
for write in (plain, tensors):
    try:
        with new_folder(root / "target", "it") as folder:
            write(folder)
    except DiskFull as error:
        assert "became full while it was being written" in str(error), error
    else:
        raise SystemExit("no error")
    assert [path.name for path in root.iterdir()] == ["target"], list(root.iterdir())
    assert (root / "target/old").read_text() == "old"
print("done")
"""


@pytest.mark.slow
def test_a_disk_that_becomes_full_while_writing(tmp_path: Path) -> None:
    """On a real file system of 2 MiB, where this user may mount one for itself."""
    mount = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    script = 'mount -t tmpfs -o size=2m none "$1" || exit 77; shift; exec "$@"'
    call = [*mount, script, "sh", str(tmp_path), sys.executable, "-c", FILL, str(tmp_path)]
    try:
        done = subprocess.run(call, capture_output=True, text=True, timeout=120)
    except FileNotFoundError:
        pytest.skip("no unshare on this system")
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"this user may not mount: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
