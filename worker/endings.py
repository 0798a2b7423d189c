"""How a task that raised ends: a status, a stable code, and words for its owner.

Knows exceptions, torch's too, without importing it. Does not know where an ending is written, nor logs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import ValidationError

from app.core.errors import (
    Cancelled,
    DiskFull,
    Hung,
    InternalError,
    InvalidRequest,
    OutOfMemory,
    StillhouseError,
    WorkerLost,
)
from worker.distill.disk import says_no_space
from worker.training import KilledForMemory

# What may not happen again: the next attempt goes on from the last checkpoint. All else would only fail once more.
WORTH_ANOTHER_TRY = (Hung, KilledForMemory, WorkerLost)
# torch.OutOfMemoryError is a RuntimeError; its allocators for CPU and MPS raise a plain one. All say one of these.
_OUT_OF_MEMORY_WORDS = ("can't allocate memory", "not enough memory", "out of memory")
_LONGEST_MESSAGE = 4000


@dataclass(frozen=True, kw_only=True)
class Ending:
    status: Literal["failed", "cancelled"]
    code: str | None  # of a failure
    message: str


def ending(error: Exception, *, memory_cure: str, log_name: str) -> Ending:
    """`memory_cure` says which settings need less memory; `log_name` whose log has the traceback."""
    told = as_told(error, log_name=log_name)
    message = str(told)
    if isinstance(told, OutOfMemory):
        message = f"{message}; {memory_cure}"
    is_failure = not isinstance(told, Cancelled)
    return Ending(
        status="failed" if is_failure else "cancelled",
        code=told.code if is_failure else None,
        message=message.replace("\x00", "\ufffd")[:_LONGEST_MESSAGE],  # PostgreSQL holds no NUL
    )


def as_told(error: BaseException, *, log_name: str) -> StillhouseError:
    """The error as one of ours, which any process can unpickle without torch."""
    if isinstance(error, StillhouseError):
        return error
    if _is_out_of_memory(error):
        return OutOfMemory(f"the memory did not suffice ({_first_line(error)})")
    if says_no_space(error):
        return DiskFull(f"{error}; what was kept before is whole: make space and let the job go on")
    if isinstance(error, ValidationError):
        where = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        return InvalidRequest(f"the stored description is not one that this version accepts, submit it again ({where})")
    return InternalError(
        f"{type(error).__name__}: {error} (not an error we foresaw; the traceback is in the {log_name} worker's log, "
        f"which `stillhouse up` keeps as logs/{log_name}.log in the state folder)"
    )


def _first_line(error: BaseException) -> str:
    """What was asked for and what there is, as the allocator says; what follows are hints for programmers."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].split(" See documentation")[0]


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, RuntimeError):
        return any(words in str(error).lower() for words in _OUT_OF_MEMORY_WORDS)
    return isinstance(error, MemoryError)
