"""Freed memory stays with the process that trains, so that the next tensor of that size finds its pages in place.

Knows glibc's `mallopt`. Changes nothing elsewhere: not on other C libraries, not on a GPU, whose memory torch keeps.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_HIGH = 2**30


def keep_freed_memory() -> bool:
    """Asks the C library to keep freed memory (but a GiB at the end of its heap); whether it will.

    By default every tensor of more than 32 MiB is mapped anew: the kernel clears its pages at their first touch, which
    was a tenth of a training step's processor time (docs/log.md). For processes that train and nothing else.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # musl and macOS have none, Windows has no such library
        return False
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, _HIGH))
