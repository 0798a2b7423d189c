"""An archive is a tar that others can read, of exactly the size that was promised."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from app import archive
from app.core.storage import ArtifactStore

FILES = {
    "empty": b"",
    "one-block": b"x" * tarfile.BLOCKSIZE,
    "one-more": b"y" * (tarfile.BLOCKSIZE + 1),
    "deep/" + "a" * 120 + ".bin": b"a name that an old tar header has no room for",
    "größe-模型.json": b"names beyond ASCII",
}


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    store = ArtifactStore(f"file://{tmp_path}")
    for name, content in FILES.items():
        with store.open(f"models/mdl_1/{name}", "wb") as file:
            file.write(content)
    return store


def test_every_file_comes_back_under_the_folder(store: ArtifactStore) -> None:
    packed = archive.members(store, "models/mdl_1", folder="my-student")
    data = b"".join(archive.stream(store, packed))
    assert len(data) == archive.size(packed)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        found = {info.name: file.read() for info in tar if (file := tar.extractfile(info))}
    assert found == {f"my-student/{name}": content for name, content in FILES.items()}


def test_the_same_folder_gives_the_same_bytes(store: ArtifactStore) -> None:
    first, second = (
        b"".join(archive.stream(store, archive.members(store, "models/mdl_1", folder="f"))) for _ in range(2)
    )
    assert first == second


def test_a_folder_without_files_is_an_empty_archive(store: ArtifactStore) -> None:
    packed = archive.members(store, "models/mdl_2", folder="f")
    with tarfile.open(fileobj=io.BytesIO(b"".join(archive.stream(store, packed)))) as tar:
        assert tar.getnames() == []
