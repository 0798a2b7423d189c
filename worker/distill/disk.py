"""Folders that appear on disk whole or not at all, also when the power fails or the disk is full.

Knows files, fsync and the ways in which systems say that there is no space. Does not know what is written.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from app.core.errors import DiskFull

UNFINISHED = ".tmp-"
# No space, over the quota, over the process's own limit of a file's size.
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

FreeBytes = Callable[[Path], int]


def free_bytes(folder: Path) -> int:
    """What an ordinary user may still write on the file system of `folder`."""
    return shutil.disk_usage(folder).free


def need_space(needed: int, folder: Path, what: str, *, free: FreeBytes = free_bytes) -> None:
    """Raises DiskFull, with numbers, when `needed` bytes for `what` do not fit on the file system of `folder`."""
    if (left := free(folder)) < needed:
        raise DiskFull(
            f"{what} needs {_size(needed)}, and {folder} has {_size(left)} free; what was kept before is whole: make "
            "space (or lower training.keep_last) and let the run go on"
        )


@contextmanager
def new_folder(target: Path, what: str) -> Iterator[Path]:
    """A temporary folder beside `target` to write into. At the end everything is on the disk and it becomes `target`.

    What was at `target` is replaced. Whatever goes wrong, nothing of the new folder is left; a disk that became full
    while writing is DiskFull.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f"{UNFINISHED}{target.name}-", dir=target.parent))
    try:
        with telling_disk_full(what, target.parent):
            temporary.chmod(0o755)  # mkdtemp's is for its owner alone
            yield temporary
            _sync_tree(temporary)
            remove_folder(target)
            temporary.rename(target)
            _sync(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def telling_disk_full(what: str, folder: Path) -> Iterator[None]:
    """Raises DiskFull for errors that say that there is no space for `what` in `folder`."""
    try:
        yield
    except Exception as error:
        if not says_no_space(error):
            raise
        raise DiskFull(
            f"the disk of {folder} became full while {what} was being written ({error}); what was kept before is "
            "whole: make space (or lower training.keep_last) and let the run go on"
        ) from error


def remove_folder(path: Path) -> None:
    """Removes a folder if there is one, so that whoever is killed meanwhile leaves no half of it under its name."""
    if path.exists():
        doomed = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=path.parent))
        path.rename(doomed / path.name)
        shutil.rmtree(doomed, ignore_errors=True)


def remove_unfinished(folder: Path) -> None:
    """Removes what processes that were killed while writing left in `folder`."""
    for path in folder.glob(f"{UNFINISHED}*"):
        shutil.rmtree(path, ignore_errors=True)


def _sync_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def says_no_space(error: BaseException) -> bool:
    """Whether an error means that a disk is full, or that no file may become so large. safetensors and
    `shutil.copytree`, which collects the errors of many files, know the number of the system's error only as words."""
    if isinstance(error, shutil.Error):
        return any(f"[Errno {number}]" in str(error) for number in _NO_SPACE)
    if isinstance(error, OSError):
        return error.errno in _NO_SPACE
    return any(f"(os error {number})" in str(error) for number in _NO_SPACE)


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.0f} MiB"
