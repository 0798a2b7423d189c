"""Artifacts (data sets, students) in a folder or an object store.

Knows fsspec and keys such as `datasets/{id}.jsonl`. Does not know what is inside, or who may see it. An artifact is
written once under a fresh id and never changed, so a fetched copy is good for ever.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import IO, Any

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem


class ArtifactStore:
    """`url` is an fsspec URL: `file:///some/folder`, `s3://bucket/prefix`, `memory://`. What is not local is fetched
    into `cache_folder` (default: a folder of this user's in the system's temporary one)."""

    def __init__(self, url: str, *, cache_folder: Path | None = None) -> None:
        self._fs, self._root = url_to_fs(url)
        self._is_local = isinstance(self._fs, LocalFileSystem)
        self._cache = cache_folder or Path(tempfile.gettempdir()) / f"stillhouse-artifacts-{os.getuid()}"

    def put_folder(self, local: Path, key: str) -> None:
        """Copies the folder `local` to `key`. On a local store it appears whole or not at all."""
        if self._is_local:
            with _arriving(Path(self._path(key))) as partial:
                shutil.copytree(local, partial)
        else:
            for file in sorted(path for path in local.rglob("*") if path.is_file()):
                self._fs.put_file(str(file), f"{self._path(key)}/{file.relative_to(local).as_posix()}")

    def put_file(self, local: Path, key: str) -> None:
        """Copies the file `local` to `key`. On a local store it appears whole or not at all."""
        if self._is_local:
            with _arriving(Path(self._path(key))) as partial:
                shutil.copyfile(local, partial)
        else:
            self._fs.put_file(str(local), self._path(key))

    def local_path(self, key: str) -> Path:
        """A path on this machine with the file or folder at `key`. Raises FileNotFoundError."""
        if not self.exists(key):
            raise FileNotFoundError(f"no artifact {key}")
        return Path(self._path(key)) if self._is_local else self._fetched(key)

    def open(self, key: str, mode: str = "rb") -> IO[Any]:
        """A file object; writing modes create what is missing above it. Raises FileNotFoundError when reading."""
        path = self._path(key)
        if "w" in mode:
            self._fs.makedirs(str(PurePosixPath(path).parent), exist_ok=True)
        return self._fs.open(path, mode)

    def exists(self, key: str) -> bool:
        return self._fs.exists(self._path(key))

    def local_folder(self, key: str) -> Path | None:
        """Where the folder at `key` is, or would be, if the store is a local folder; None for any other store. For what
        changes while it is used: a running job's checkpoints."""
        return Path(self._path(key)) if self._is_local else None

    def get_folder(self, key: str, local: Path) -> None:
        """Copies the folder at `key` to the new folder `local`. Raises FileNotFoundError."""
        with _arriving(local) as partial:
            self._fs.get(self._path(key), str(partial), recursive=True)

    def files(self, key: str) -> list[str]:
        """The keys of all files in the folder at `key` and below, sorted; none where there is no such folder."""
        self._fs.invalidate_cache()
        return sorted(path.removeprefix(f"{self._root}/") for path in self._fs.find(self._path(key)))

    def children(self, key: str) -> list[str]:
        """Names of the files and folders directly in the folder at `key`, hidden ones too, sorted; none where there is
        no such folder."""
        self._fs.invalidate_cache()
        path = self._path(key)
        found = self._fs.ls(path, detail=True) if self._fs.isdir(path) else []
        return sorted(PurePosixPath(entry["name"]).name for entry in found)

    def changed_at(self, key: str) -> datetime | None:
        """When the file at `key`, or the newest one in the folder at `key`, was last written. None: that is not known,
        or it is gone meanwhile."""
        path = self._path(key)
        try:
            paths = self._fs.find(path) or [path]
            times = [self._fs.modified(path) for path in paths]
        except (OSError, NotImplementedError):
            return None
        return max(time if time.tzinfo else time.replace(tzinfo=UTC) for time in times)

    def free_bytes(self) -> int | None:
        """Free space of a store that is a local folder; None for any other."""
        if not self._is_local:
            return None
        folder = Path(self._root)
        return shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free

    def size(self, key: str) -> int:
        """Bytes of the file at `key`. Raises FileNotFoundError."""
        return int(self._fs.size(self._path(key)))

    def delete(self, key: str) -> None:
        """Removes the file or folder at `key`, if it is there."""
        if self.exists(key):
            self._fs.rm(self._path(key), recursive=True)

    def check(self) -> None:
        """Writes, reads and removes a small file; raises what went wrong (OSError and the store's own errors)."""
        key = f".check-{uuid.uuid4().hex}"
        with self.open(key, "wb") as file:
            file.write(b"ok")
        with self.open(key) as file:
            if file.read() != b"ok":
                raise OSError("the artifact store does not return what was written")
        self.delete(key)

    def _path(self, key: str) -> str:
        parts = PurePosixPath(key).parts
        if not parts or key.startswith("/") or ".." in parts:
            raise ValueError(f"not an artifact key: {key!r}")
        return f"{self._root}/{PurePosixPath(key)}"

    def _fetched(self, key: str) -> Path:
        target = self._cache / key
        if not target.exists():
            try:
                with _arriving(target) as partial:
                    self._fs.get(self._path(key), str(partial), recursive=self._fs.isdir(self._path(key)))
            except OSError:
                if not target.exists():  # else another process fetched the same folder first
                    raise
        return target


@contextmanager
def _arriving(target: Path) -> Iterator[Path]:
    """A path beside `target` to write to; it becomes `target` at the end, or nothing is left of it."""
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        yield partial
        partial.replace(target)
    finally:
        if partial.is_dir():
            shutil.rmtree(partial)
        else:
            partial.unlink(missing_ok=True)
