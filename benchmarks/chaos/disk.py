"""A disk that can be full: of the run's own if this user may mount one, or else a limit on what trainings may write.

Knows mounts and limits of processes. Does not know what is kept there.
"""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import psutil

_SIZE_MIB = 384
_LIMIT_BYTES = 64 * 2**10


class Disk(Protocol):
    """`fill` leaves `spare` bytes; `clear` gives the space back. `tells`: the service sees by itself that there is
    space again, so nobody has to resume what was paused."""

    tells: bool

    def fill(self, spare: int) -> None: ...

    def clear(self) -> None: ...


class SmallDisk:
    tells = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ballast = folder / ".ballast"

    def fill(self, spare: int) -> None:
        free = os.statvfs(self._folder)
        size = free.f_bavail * free.f_frsize - spare
        with self._ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(size, 1))

    def clear(self) -> None:
        self._ballast.unlink(missing_ok=True)


class FileSizeLimit:
    """For users who may not mount: no file of a running training may grow beyond some kilobytes."""

    tells = False

    def __init__(self, trainings: Callable[[], Iterable[psutil.Process]]) -> None:
        self._trainings = trainings
        self._limited: list[psutil.Process] = []

    def fill(self, spare: int) -> None:
        self._limited = list(self._trainings())
        self._limit(_LIMIT_BYTES)

    def clear(self) -> None:
        self._limit(None)

    def _limit(self, size: int | None) -> None:
        for process in self._limited:
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                if process.is_running():
                    _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
                    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (hard if size is None else size, hard))


@contextmanager
def disk(folder: Path, trainings: Callable[[], Iterable[psutil.Process]]) -> Iterator[Disk]:
    """Makes `folder`, on a small disk of its own where that is allowed."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE_MIB}m,mode=700", "stillhouse-chaos", str(folder)]
    if os.getuid() != 0 or subprocess.run(mount, stderr=subprocess.DEVNULL, check=False).returncode != 0:
        print("no disk of our own may be mounted: a full one is played by a limit on the size of files", flush=True)
        yield FileSizeLimit(trainings)
        return
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
