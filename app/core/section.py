"""The base of every section of a job's description.

Knows how strict sections are. Does not know any of them.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Base of every section: immutable, and an unknown field is an error, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
