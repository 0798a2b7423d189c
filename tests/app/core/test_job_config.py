"""The job description: it round-trips exactly, refuses what it does not know, and is frozen."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from app.core.job_config import DistillConfig

MINIMAL: dict[str, Any] = {
    "teacher": {"model": "a/teacher"},
    "student": {"kind": "from_teacher", "layers": 10},
    "data": {"kind": "dataset", "dataset_id": "ds_1"},
}


def with_(**changes: Any) -> dict[str, Any]:
    return {**MINIMAL, **changes}


def test_the_readme_example_is_valid_and_round_trips() -> None:
    raw = with_(
        sampling={"kind": "adaptive_off_policy", "max_new_tokens": 128},
        scrg={"rounds": 1},
        losses=[{"kind": "sft", "weight": 1}, {"kind": "dac_kl", "weight": 1}, {"kind": "span", "weight": 1}],
        training={"max_steps": 100, "batch_size": 8, "gradient_accumulation": 1, "learning_rate": 5e-5, "seed": 0},
    )
    config = DistillConfig.model_validate(raw)
    assert DistillConfig.model_validate_json(config.model_dump_json()) == config
    assert DistillConfig.model_validate(json.loads(json.dumps(config.model_dump(mode="json")))) == config


@pytest.mark.parametrize(
    ("raw", "loc"),
    [
        (with_(colour="red"), ("colour",)),
        (with_(training={"max_stepz": 3}), ("training", "max_stepz")),
        (with_(losses=[{"kind": "cross_entropy"}]), ("losses", 0)),
        (with_(losses=[]), ("losses",)),
        (with_(sampling={"kind": "off"}), ("sampling",)),
        (with_(student={"kind": "from_teacher", "layers": 0}), ("student", "from_teacher", "layers")),
        *[
            (
                with_(sampling={"kind": kind, "batches_per_generation": n}),
                ("sampling", kind, "batches_per_generation"),
            )
            for kind, n in (("ground_truth", 2), ("on_policy", 0), ("mixed", 65))
        ],
        (with_(recipe="magic"), ("recipe",)),
        (with_(training={"learning_rate": 0}), ("training", "learning_rate")),
        ({k: v for k, v in MINIMAL.items() if k != "teacher"}, ("teacher",)),
    ],
)
def test_unknown_fields_and_kinds_are_refused_at_their_path(raw: dict[str, Any], loc: tuple[Any, ...]) -> None:
    with pytest.raises(ValidationError) as caught:
        DistillConfig.model_validate(raw)
    assert loc in [error["loc"] for error in caught.value.errors()]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"losses": [{"kind": "sft"}, {"kind": "sft"}]}, "each kind may appear once"),
        ({"losses": [{"kind": "sft"}]}, "sampled batches would train on nothing"),
        ({"losses": [{"kind": "dac_kl", "fixed_lower": 0.9, "fixed_upper": 0.5}]}, "fixed_lower"),
        *[
            ({"evaluation": {"rouge_rows": 0, **measure}}, "need prompts")
            for measure in (
                {"temperatures": [0.7]},
                {"own_samples": True},
                {"exact_match": True},
                {"metric": "rouge_l"},
            )
        ],
        ({"evaluation": {"metric": "exact_match"}}, "set exact_match to true"),
    ],
)
def test_contradictions_are_explained(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        DistillConfig.model_validate(with_(**changes))


def test_sft_alone_is_fine_on_ground_truth() -> None:
    assert DistillConfig.model_validate(with_(recipe="sft")).losses[0].kind == "sft"


def test_a_description_never_changes() -> None:
    config = DistillConfig.model_validate(MINIMAL)
    with pytest.raises(ValidationError, match="frozen"):
        config.training.max_steps = 7  # type: ignore[misc]


def test_a_stored_description_takes_no_setting_from_a_recipe_of_today() -> None:
    """One from before there were two settings that the recipe sets now goes on as it began."""
    whole = DistillConfig.model_validate(MINIMAL).model_dump(mode="json")
    newer = {"skip_known": False, "batches_per_generation": 1}
    older = {**whole, "sampling": {name: value for name, value in whole["sampling"].items() if name not in newer}}
    assert DistillConfig.stored(older).sampling.model_dump().items() >= newer.items()
    assert DistillConfig.model_validate(older) == DistillConfig.model_validate(whole)
    assert DistillConfig.stored(whole) == DistillConfig.model_validate(whole)
    with pytest.raises(ValidationError):
        DistillConfig.stored(MINIMAL)
