"""Artifacts in a folder and in a store that is not local (fsspec's memory file system)."""

from __future__ import annotations

import os
import shutil
import uuid
from datetime import UTC, datetime
from pathlib import Path

import pytest

from app.core.storage import ArtifactStore


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactStore:
    url = f"file://{tmp_path / 'store'}" if request.param == "file" else f"memory://{uuid.uuid4().hex}"
    return ArtifactStore(url, cache_folder=tmp_path / "cache")


def test_a_file_goes_in_and_comes_out(store: ArtifactStore, tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("hello")
    store.put_file(tmp_path / "rows", "datasets/ds_1.jsonl")
    assert store.exists("datasets/ds_1.jsonl")
    assert store.local_path("datasets/ds_1.jsonl").read_text() == "hello"
    with store.open("datasets/ds_1.jsonl") as file:
        assert file.read() == b"hello"
    store.delete("datasets/ds_1.jsonl")
    assert not store.exists("datasets/ds_1.jsonl")
    store.delete("datasets/ds_1.jsonl")


def test_a_folder_goes_in_and_comes_out(store: ArtifactStore, tmp_path: Path) -> None:
    folder = tmp_path / "student"
    (folder / "sub").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "sub" / "deep.txt").write_text("deep")
    store.put_folder(folder, "students/mdl_1")
    for _ in range(2):  # the second read comes from the cache where there is one
        local = store.local_path("students/mdl_1")
        assert sorted(path.relative_to(local).as_posix() for path in local.rglob("*.*")) == [
            "config.json",
            "sub/deep.txt",
        ]
    store.delete("students/mdl_1")
    assert not store.exists("students/mdl_1")


def test_what_is_written_can_be_read(store: ArtifactStore) -> None:
    with store.open("some/where/new.txt", "w") as file:
        file.write("text")
    with store.open("some/where/new.txt", "r") as file:
        assert file.read() == "text"


def test_missing_artifacts(store: ArtifactStore) -> None:
    with pytest.raises(FileNotFoundError):
        store.local_path("students/mdl_none")
    with pytest.raises(FileNotFoundError):
        store.open("students/mdl_none")


@pytest.mark.parametrize("key", ["", "/etc/passwd", "../up", "students/../../up"])
def test_keys_cannot_leave_the_store(store: ArtifactStore, key: str) -> None:
    with pytest.raises(ValueError, match="not an artifact key"):
        store.local_path(key)


def test_a_working_store_passes_the_check_and_stays_clean(store: ArtifactStore) -> None:
    store.check()
    store.check()
    with store.open("only.txt", "w") as file:
        file.write("x")
    assert store.exists("only.txt")


def test_a_store_that_cannot_be_written_fails_the_check(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file where the folder should be")
    with pytest.raises(OSError, match="store"):
        ArtifactStore(f"file://{tmp_path / 'store'}").check()


def test_a_copy_that_fails_leaves_nothing_behind_its_name(tmp_path: Path) -> None:
    store = ArtifactStore(f"file://{tmp_path / 'store'}")
    with pytest.raises(OSError, match="missing"):
        store.put_folder(tmp_path / "missing", "students/mdl_1")
    assert not store.exists("students/mdl_1")


def test_a_folders_files_are_listed_and_fetched(store: ArtifactStore, tmp_path: Path) -> None:
    assert store.files("checkpoints/job_1") == []
    for name in ("1/a/x", "1/b", "2/c"):
        with store.open(f"checkpoints/job_1/{name}", "wb") as file:
            file.write(name.encode())
    assert store.files("checkpoints/job_1/1") == ["checkpoints/job_1/1/a/x", "checkpoints/job_1/1/b"]
    store.get_folder("checkpoints/job_1/1", tmp_path / "here")
    assert (tmp_path / "here/a/x").read_bytes() == b"1/a/x"
    with pytest.raises(FileNotFoundError):
        store.get_folder("checkpoints/job_1/9", tmp_path / "there")


def test_a_folder_has_a_path_and_free_space(tmp_path: Path) -> None:
    store = ArtifactStore(f"file://{tmp_path / 'not' / 'yet'}")
    assert store.local_folder("a/b") == tmp_path / "not/yet/a/b"
    assert store.free_bytes() == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.5)
    elsewhere = ArtifactStore("memory://free")
    assert (elsewhere.local_folder("a/b"), elsewhere.free_bytes()) == (None, None)


def test_children_and_when_they_were_last_written(tmp_path: Path) -> None:
    store = ArtifactStore(f"file://{tmp_path}")
    assert store.children("students") == []
    for key in ("students/b/deep/w", "students/b/c", "students/.a.partial", "datasets/d"):
        with store.open(key, "wb") as file:
            file.write(b"x")
    os.utime(tmp_path / "students/b/c", (1000, 1000))
    os.utime(tmp_path / "students/b/deep/w", (2000, 2000))
    assert store.children("students") == [".a.partial", "b"]
    assert store.changed_at("students/b") == datetime.fromtimestamp(2000, UTC)
    assert store.changed_at("students/b/c") == datetime.fromtimestamp(1000, UTC)
    assert store.changed_at("students/none") is None
