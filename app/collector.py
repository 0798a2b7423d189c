"""Python's garbage collector, kept from holding up requests.

Knows CPython's generations. Does not know what is loaded when.

A full collection stops every thread while it looks at each object that lives. Behind transformers and torch those are
half a million, mostly of modules, and one takes 0.3 s; an API that answers with long lists makes one every few
requests. So what modules made is frozen, which is to say never looked at again: what is there at the start, and later
whatever a full collection still finds in large numbers, because transformers is imported by the first job.
"""

from __future__ import annotations

import gc
from typing import Any

# More than requests under way have at any moment, and less than a large import makes.
_IMPORTED = 50_000


def keep_collections_short() -> None:
    """Freezes what lives now, and from now on what piles up; for a whole process, once, when its modules are there."""
    gc.freeze()
    if _freeze_imported not in gc.callbacks:
        gc.callbacks.append(_freeze_imported)


def _freeze_imported(phase: str, info: dict[str, Any]) -> None:
    if phase == "stop" and info["generation"] == 2 and len(gc.get_objects(generation=2)) > _IMPORTED:
        gc.freeze()
