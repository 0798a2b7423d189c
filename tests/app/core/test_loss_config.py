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
        {"kind": "dac_kl", "start_lower": 0.5, "start_upper": 0.5},
        {"kind": "dac_kl", "start_upper": 1.0},
        {"kind": "dac_kl", "quantiles": "beside"},
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


def test_a_description_from_before_the_quantiles_could_be_chosen_is_still_one() -> None:
    older = {
        "kind": "dac_kl",
        "weight": 1.0,
        "top_k": 256,
        "hidden_size": 64,
        "kappa": 50.0,
        "normalise": "rest_bucket",
        "divergence": "forward",
        "alpha": 0.1,
        "subnet_objective": "density",
        "density_price": 0.002,
        "fixed_lower": 0.0,
        "fixed_upper": 0.95,
        "min_kept_mass": 0.1,
        "floor_alarm_share": 0.5,
        "subnet_lr_factor": 10.0,
    }
    assert ADAPTER.validate_python(older) == DacKlLoss()
