"""Sections are frozen and know what they do not know."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from app.core.section import Settings


class Colours(Settings):
    sky: float = 0.5


def test_sections_are_strict_and_frozen() -> None:
    colours = Colours()
    for raw in ({"sea": 1}, {"sky": float("nan")}):
        with pytest.raises(ValidationError):
            Colours.model_validate(raw)
    with pytest.raises(ValidationError, match="frozen"):
        colours.sky = 1.0  # type: ignore[misc]
