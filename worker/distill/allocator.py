"""What a process that trains keeps: freed memory, so that the next tensor finds its pages in place, and few kernels.

Knows glibc's `mallopt` and oneDNN's settings. Changes nothing elsewhere: not on other C libraries, not on a GPU.
"""

from __future__ import annotations

import ctypes
import os

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_HIGH = 2**30
# A step has about a hundred products of different sizes, many of which the next step has too.
_KERNELS = 128


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


def keep_few_kernels() -> None:
    """Has oneDNN, and what torch puts before it, keep the kernels of the last 128 sizes instead of 1,024 each.

    A kernel is compiled for the sizes of a product and takes about 0.5 MiB. Batches of ever other lengths fill both
    caches, which never shrink (docs/log.md). Must come before the first product; what the environment says already
    holds.
    """
    for name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        os.environ.setdefault(name, str(_KERNELS))
