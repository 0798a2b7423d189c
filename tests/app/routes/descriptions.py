"""Job descriptions that differ in one place. Knows JSON documents only."""

from __future__ import annotations

import copy
from typing import Any

Description = dict[str, Any]


def changed(description: Description, path: str, value: Any) -> Description:
    """A copy with the dotted path set."""
    result = copy.deepcopy(description)
    target = result
    *parents, last = path.split(".")
    for key in parents:
        target = target.setdefault(key, {})
    target[last] = value
    return result
