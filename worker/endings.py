"""How a task that raised ends: a status, a stable code, and words for its owner.

Knows exceptions, torch's included. Does not know where the ending is written; tracebacks are for the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import ValidationError

from app.core.errors import Cancelled, OutOfMemory, StillhouseError

# torch's allocators for CPU and MPS raise a plain RuntimeError with these words.
_OUT_OF_MEMORY_WORDS = ("can't allocate memory", "not enough memory", "out of memory")


@dataclass(frozen=True, kw_only=True)
class Ending:
    status: Literal["failed", "cancelled"]
    code: str
    message: str


def ending(error: Exception, *, memory_cure: str, log_name: str) -> Ending:
    """`memory_cure` says which settings need less memory; `log_name` whose log has the traceback."""
    if isinstance(error, Cancelled):
        return Ending(status="cancelled", code=error.code, message=str(error))
    if _is_out_of_memory(error):
        return Ending(status="failed", code=OutOfMemory.code, message=f"the memory did not suffice: {memory_cure}")
    if isinstance(error, StillhouseError):
        return Ending(status="failed", code=error.code, message=str(error))
    if isinstance(error, ValidationError):
        where = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        message = f"the stored description is not one that this version accepts, submit it again ({where})"
        return Ending(status="failed", code="invalid_request", message=message)
    message = (
        f"{type(error).__name__}: {error} (not an error we foresaw; the traceback is in the {log_name} worker's log, "
        f"which `stillhouse up` keeps as logs/{log_name}.log in the state folder)"
    )
    return Ending(status="failed", code="internal_error", message=message)


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, RuntimeError) and not isinstance(error, torch.OutOfMemoryError):
        return any(words in str(error).lower() for words in _OUT_OF_MEMORY_WORDS)
    return isinstance(error, torch.OutOfMemoryError | MemoryError)
