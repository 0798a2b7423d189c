"""Every contender is a job that the engine accepts, and differs from the recipe in what its name says."""

from __future__ import annotations

from typing import Any

import pytest

from app.core.job_config import DistillConfig
from app.core.recipes import RECIPES
from benchmarks.quality.contenders import Contender, ablations, baselines, controls, ours

ALL = [*baselines(), ours(), *ablations(), *controls()]


def described(contender: Contender) -> DistillConfig:
    raw: dict[str, Any] = {
        "teacher": {"model": "t"},
        "student": {"kind": "checkpoint", "model": "s"},
        "data": {"kind": "file", "path": "rows.jsonl"},
    }
    data = {**raw["data"], **contender.sections.get("data", {})}
    return DistillConfig.model_validate(raw | dict(contender.sections) | {"data": data})


@pytest.mark.parametrize("contender", ALL, ids=lambda contender: contender.name)
def test_it_is_a_valid_job(contender: Contender) -> None:
    assert described(contender).recipe == contender.recipe


def test_every_recipe_competes() -> None:
    assert {contender.recipe for contender in ALL} == set(RECIPES)
    assert len({contender.name for contender in ALL}) == len(ALL)


def test_no_variant_says_the_default_again() -> None:
    """A control that became the default would be the same runs under two names."""
    default = described(ours())
    for contender in (*ablations(), *(c for c in controls() if "data" not in c.sections)):
        assert described(contender) != default, contender.name


def test_ablations_leave_out_one_part_each() -> None:
    default = described(ours())
    without = {contender.variant: described(contender) for contender in ablations()}
    kinds = [loss.kind for loss in default.losses]
    assert without["no_scrg"].scrg.rounds == 0
    assert without["no_scrg"].losses == default.losses
    assert [loss.kind for loss in without["no_span"].losses] == [kind for kind in kinds if kind != "span"]
    assert "dac_kl" not in [loss.kind for loss in without["no_dac_kl"].losses]
    assert len(without["no_dac_kl"].losses) == len(kinds)
    assert without["no_dac_kl"].scrg == without["no_span"].scrg == default.scrg
