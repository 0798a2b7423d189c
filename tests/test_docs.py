"""Documentation that would be wrong without anybody noticing."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.core.settings import ServiceSettings

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ServiceSettings.model_fields)
def test_every_setting_is_described_with_its_default(name: str) -> None:
    table = (ROOT / "docs/operations.md").read_text()
    (row,) = [line for line in table.splitlines() if line.startswith(f"| `STILLHOUSE_{name.upper()}` |")]
    default = ServiceSettings.model_fields[name].default
    if isinstance(default, int | float):
        assert f"| `{default:g}` |" in row
