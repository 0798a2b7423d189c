"""Identifiers: a prefix that says what it names and a lower-case ULID, so that ids sort by age.

Knows the prefixes. Does not know tables.
"""

from __future__ import annotations

from typing import Literal

from ulid import ULID

Prefix = Literal["ds", "job", "mdl", "cmp", "div", "bat"]


def new_id(prefix: Prefix) -> str:
    """For example `job_01j9z3v5kq...`; two made within one millisecond sort at random."""
    return f"{prefix}_{str(ULID()).lower()}"
