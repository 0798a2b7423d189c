"""Folders by content key in one place on disk: there whole or not at all, the longest unused first to go.

Knows names, sizes and when a folder was last used. Does not know what is in one, or whether that is right. Any number
of processes may share a cache: whoever puts second keeps what is there, and what is removed stays readable for those
who have it open.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

_UNFINISHED = ".tmp-"


@dataclass(frozen=True, kw_only=True)
class CachedFolder:
    key: str
    bytes: int
    used_at: datetime


class FolderCache:
    """At most `limit_bytes` in `folder`, which is made when something is put into it. A larger folder than that is kept
    until the next one comes: whoever puts it in asks first."""

    def __init__(self, folder: Path, *, limit_bytes: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes

    def find(self, key: str) -> Path | None:
        """The folder of `key`, which counts as used now."""
        try:
            os.utime(self.folder / key)
        except FileNotFoundError:
            return None
        return self.folder / key

    def scratch(self) -> Path:
        """A new folder on the same disk, to be filled and put. One that is left behind is `unfinished`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=self.folder))

    def put(self, source: Path, key: str) -> Path:
        """Moves the complete folder `source` to `key`, unless somebody else has put it there meanwhile, and removes
        others as the limit says. Raises OSError."""
        holder = self.scratch()  # `source` may lie on another disk, and only a rename is at once
        try:
            shutil.move(source, holder / key)
            try:
                (holder / key).rename(self.folder / key)
            except OSError:
                if not (self.folder / key).exists():
                    raise  # else another process was first with the same
            self.find(key)
        finally:
            shutil.rmtree(holder, ignore_errors=True)
        for old in self.surplus(but=key):
            self.remove(old.key)
        return self.folder / key

    def remove(self, key: str) -> None:
        """Nobody ever finds half of it."""
        holder = self.scratch()
        with suppress(FileNotFoundError):
            (self.folder / key).rename(holder / key)
        shutil.rmtree(holder, ignore_errors=True)

    def entries(self) -> list[CachedFolder]:
        """The longest unused first."""
        found = []
        for path in self.folder.glob("[!.]*"):
            with suppress(FileNotFoundError):  # it is removed right now
                size = sum(file.stat().st_size for file in path.iterdir())
                used_at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
                found.append(CachedFolder(key=path.name, bytes=size, used_at=used_at))
        return sorted(found, key=lambda entry: (entry.used_at, entry.key))

    def surplus(self, *, but: str | None = None) -> list[CachedFolder]:
        """What has to go for the rest to be within the limit; `but` stays."""
        entries = self.entries()
        over = sum(entry.bytes for entry in entries) - self.limit_bytes
        surplus = []
        for entry in entries:
            if over <= 0:
                break
            if entry.key != but:
                surplus.append(entry)
                over -= entry.bytes
        return surplus

    def unfinished(self) -> list[tuple[Path, datetime]]:
        """Folders that are being filled or removed, or that processes left when they were killed; since when."""
        found = []
        for path in sorted(self.folder.glob(f"{_UNFINISHED}*")):
            with suppress(FileNotFoundError):
                found.append((path, datetime.fromtimestamp(path.stat().st_mtime, UTC)))
        return found
