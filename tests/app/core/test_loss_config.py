"""Settings of the losses: every kind is in the union, and weights and limits are kept."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from pydantic import TypeAdapter, ValidationError

from app.core import loss_config
from app.core.loss_config import DacKlLoss, LossConfig
from app.core.section import Settings

ADAPTER: TypeAdapter[Any] = TypeAdapter(LossConfig)


def test_every_class_is_in_the_union_under_a_kind_of_its_own() -> None:
    members = set(get_args(get_args(LossConfig)[0]))
    defined = {
        value
        for name, value in vars(loss_config).items()
        if isinstance(value, type) and issubclass(value, Settings) and name.endswith("Loss") and name != "_Loss"
    }
    assert members == defined
    kinds = [member.model_fields["kind"].default for member in members]
    assert len(set(kinds)) == len(kinds)
    for member in members:
        assert ADAPTER.validate_python({"kind": member.model_fields["kind"].default}) == member()


@pytest.mark.parametrize(
    "raw",
    [
        {"kind": "sft", "weight": 0},
        {"kind": "sft", "weight": float("inf")},
        {"kind": "sft", "wait": 1},
        {"kind": "dac_kl", "min_kept_mass": 0},
        {"kind": "dac_kl", "fixed_lower": 0.9, "fixed_upper": 0.9},
        {"kind": "span", "chunker": "guess"},
        {"kind": "cross_entropy"},
    ],
    ids=str,
)
def test_nonsense_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ADAPTER.validate_python(raw)


def test_the_floor_is_never_off() -> None:
    assert DacKlLoss().min_kept_mass > 0
