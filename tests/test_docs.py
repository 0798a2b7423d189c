"""Documentation that would be wrong without anybody noticing."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import Any, get_args

import pytest

from app.core.loss_config import LossConfig
from app.core.recipes import RECIPES
from app.core.settings import ServiceSettings

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ServiceSettings.model_fields)
def test_every_setting_is_described_with_its_default(name: str) -> None:
    table = (ROOT / "docs/operations.md").read_text()
    (row,) = [line for line in table.splitlines() if line.startswith(f"| `STILLHOUSE_{name.upper()}` |")]
    default = ServiceSettings.model_fields[name].default
    if isinstance(default, int | float):
        assert f"| `{default:g}` |" in row


@pytest.mark.parametrize("loss", get_args(get_args(LossConfig)[0]), ids=lambda loss: loss.__name__)
def test_every_loss_is_described_with_its_settings(loss: Any) -> None:
    row = _row_of_engine("loss", loss.model_fields["kind"].default)
    settings = {name: loss.model_fields[name].default for name in loss.model_fields.keys() - {"kind", "weight"}}
    assert "see above" in row or all(f"`{name}` ({value})" in row for name, value in settings.items())


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_described_with_its_losses_and_its_paper(name: str) -> None:
    row = _row_of_engine("recipe", name)
    assert " + ".join(f"`{loss['kind']}`" for loss in RECIPES[name]["losses"]) in row
    assert row.endswith(f"| {RECIPES[name]['paper']} |")


def _row_of_engine(table: str, name: str) -> str:
    """The row of `name` in the table of docs/engine.md whose first column is headed `table`."""
    lines = (ROOT / "docs/engine.md").read_text().splitlines()
    (start,) = [i for i, line in enumerate(lines) if line.startswith(f"| {table} ")]
    (row,) = [line for line in takewhile(bool, lines[start:]) if line.startswith(f"| `{name}` ")]
    return row
