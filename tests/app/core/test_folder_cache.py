"""A cache of folders: whole or not there, whoever puts second, and what goes when there is too much."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.core.folder_cache import FolderCache


def filled(folder: Path, *, content: bytes = b"x" * 100) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "file.bin").write_bytes(content)
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> FolderCache:
    return FolderCache(tmp_path / "cache", limit_bytes=250)


def test_what_is_put_is_found_and_nothing_else_is_left(cache: FolderCache, tmp_path: Path) -> None:
    assert cache.find("a") is None
    assert cache.entries() == []
    source = filled(tmp_path / "elsewhere")
    folder = cache.put(source, "a")
    assert cache.find("a") == folder
    assert (folder / "file.bin").read_bytes() == b"x" * 100
    assert not source.exists()
    assert cache.unfinished() == []
    cache.remove("a")
    cache.remove("a")  # somebody else was first
    assert cache.find("a") is None


def test_whoever_is_second_keeps_what_is_there(cache: FolderCache, tmp_path: Path) -> None:
    cache.put(filled(tmp_path / "first", content=b"first"), "a")
    with (cache.folder / "a/file.bin").open("rb") as reader:
        folder = cache.put(filled(tmp_path / "second", content=b"second"), "a")
        assert reader.read() == (folder / "file.bin").read_bytes() == b"first"
    assert cache.unfinished() == []


def test_the_longest_unused_go_first_and_never_what_was_just_put(cache: FolderCache, tmp_path: Path) -> None:
    for key, used_at in (("c", 1000), ("b", 2000)):
        os.utime(cache.put(filled(tmp_path / key), key), (used_at, used_at))
    cache.find("c")  # used now
    reader = (cache.folder / "b/file.bin").open("rb")
    cache.put(filled(tmp_path / "a"), "a")
    assert {entry.key for entry in cache.entries()} == {"c", "a"}
    with reader:
        assert reader.read() == b"x" * 100  # who has it open reads on
    cache.put(filled(tmp_path / "large", content=b"x" * 999), "large")
    assert [entry.key for entry in cache.entries()] == ["large"]
    assert [entry.key for entry in cache.surplus()] == ["large"]


def test_what_cannot_be_put_leaves_nothing(cache: FolderCache, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        cache.put(tmp_path / "nowhere", "a")
    assert cache.entries() == []
    assert cache.unfinished() == []
