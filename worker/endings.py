"""How a task that raised ends: a status, a stable code, and words for its owner.

Knows exceptions, torch's too, without importing it. Does not know where an ending is written, nor logs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import ValidationError

from app.core.errors import Cancelled, InvalidRequest, OutOfMemory, StillhouseError

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
    code, message = _told(error, memory_cure=memory_cure, log_name=log_name)
    is_failure = not isinstance(error, Cancelled)
    return Ending(
        status="failed" if is_failure else "cancelled",
        code=code if is_failure else None,
        message=message.replace("\x00", "\ufffd")[:_LONGEST_MESSAGE],  # PostgreSQL holds no NUL
    )


def _told(error: Exception, *, memory_cure: str, log_name: str) -> tuple[str, str]:
    """Code and message."""
    if _is_out_of_memory(error):
        return OutOfMemory.code, f"the memory did not suffice: {memory_cure}"
    if isinstance(error, StillhouseError):
        return error.code, str(error)
    if isinstance(error, ValidationError):
        where = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        message = f"the stored description is not one that this version accepts, submit it again ({where})"
        return InvalidRequest.code, message
    return "internal_error", (
        f"{type(error).__name__}: {error} (not an error we foresaw; the traceback is in the {log_name} worker's log, "
        f"which `stillhouse up` keeps as logs/{log_name}.log in the state folder)"
    )


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, RuntimeError):
        return any(words in str(error).lower() for words in _OUT_OF_MEMORY_WORDS)
    return isinstance(error, MemoryError)
