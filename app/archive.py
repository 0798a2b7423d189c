"""A folder of the artifact store as a tar file, piece by piece.

Knows tar's blocks, through the standard library's headers; its writer wants a file to write to, and a response has
none. Does not know models.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from app.core.storage import ArtifactStore

_CHUNK_BYTES = 2**20
_END = b"\0" * (2 * tarfile.BLOCKSIZE)


@dataclass(frozen=True)
class Member:
    """A file of the store and its header in the archive."""

    key: str
    num_bytes: int
    header: bytes

    @property
    def padding(self) -> bytes:
        return b"\0" * (-self.num_bytes % tarfile.BLOCKSIZE)


def members(store: ArtifactStore, key: str, *, folder: str) -> list[Member]:
    """The files below `key`, to be packed as `folder`/..., in a fixed order and without times: the same folder gives
    the same bytes."""
    return [_member(store, file, f"{folder}/{PurePosixPath(file).relative_to(key)}") for file in store.files(key)]


def _member(store: ArtifactStore, key: str, name: str) -> Member:
    info = tarfile.TarInfo(name)
    info.size = store.size(key)
    return Member(key, info.size, info.tobuf(tarfile.PAX_FORMAT))


def size(packed: Sequence[Member]) -> int:
    """Of the whole archive, in bytes."""
    return sum(len(member.header) + member.num_bytes + len(member.padding) for member in packed) + len(_END)


def stream(store: ArtifactStore, packed: Sequence[Member]) -> Iterator[bytes]:
    """The archive in pieces of at most 1 MiB."""
    for member in packed:
        yield member.header
        with store.open(member.key) as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk
        yield member.padding
    yield _END
