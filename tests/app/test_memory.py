"""The memory formula on a case worked out by hand."""

from __future__ import annotations

import pytest

from app.core.model_facts import ModelFacts
from app.memory import estimate_bytes
from tests.app.conftest import make_config


def facts(*, layers: int, parameters: int) -> ModelFacts:
    return ModelFacts(
        source="m",
        layers=layers,
        hidden_size=10,
        kv_width=4,
        vocabulary_size=100,
        context=50,
        parameters=parameters,
        layer_parameters=0,
        tokens={},
        has_chat_template=True,
    )


TEACHER, STUDENT = facts(layers=4, parameters=1000), facts(layers=2, parameters=600)


def test_float32_by_hand() -> None:
    config = make_config(
        training={"precision": "float32", "batch_size": 3, "logits": "whole"},
        sampling={"kind": "on_policy", "max_new_tokens": 10},
    )
    positions = 3 * 50  # 512 prompt tokens would not fit the context
    assert estimate_bytes(config, teacher=TEACHER, student=STUDENT) == {
        "weights": 4 * 1000 + 4 * 600,
        "gradients": 2400,
        "optimizer": 4800,
        "caches": 2 * 4 * positions * (4 * 4 + 2 * 4),
        "activations": 17 * 4 * positions * 10 * 2 + 6 * 4 * positions * 100,
        "total": 6400 + 2400 + 4800 + 28_800 + 204_000 + 360_000,
    }


def test_bfloat16_keeps_a_copy_that_samples_and_the_data_alone_needs_no_cache() -> None:
    sampled = estimate_bytes(make_config(sampling={"kind": "on_policy"}), teacher=TEACHER, student=STUDENT)
    given = estimate_bytes(make_config(recipe="kd"), teacher=TEACHER, student=STUDENT)
    assert sampled["weights"] == given["weights"] == 2 * 1000 + 4 * 600 + 2 * 600  # evaluations read it too
    assert given["caches"] == 0


def test_batches_that_are_drawn_together_have_their_caches_together() -> None:
    one, four = (
        estimate_bytes(
            make_config(sampling={"kind": "on_policy", "batches_per_generation": n}), teacher=TEACHER, student=STUDENT
        )
        for n in (1, 4)
    )
    assert four == one | {"caches": 4 * one["caches"], "total": one["total"] + 3 * one["caches"]}


@pytest.mark.parametrize(("responses", "batches", "expected"), [("student", 1, 3), ("student", 4, 4), ("given", 1, 1)])
def test_prompts_that_are_answered_to_be_compared_have_their_caches_together(
    responses: str, batches: int, expected: int
) -> None:
    one, tried = (
        estimate_bytes(
            make_config(
                data={"kind": "dataset", "dataset_id": "d", "responses": responses},
                sampling={"kind": "on_policy", **more},
            ),
            teacher=TEACHER,
            student=STUDENT,
        )
        for more in ({}, {"candidates": 3, "batches_per_generation": batches})
    )
    assert tried["caches"] == expected * one["caches"]


def test_chunks_bound_the_logits() -> None:
    wide = ModelFacts(**{**vars(TEACHER), "vocabulary_size": 10**6, "context": None})
    config = make_config(training={"logits": "chunked"})
    whole = make_config(training={"logits": "whole"})
    difference = (
        estimate_bytes(whole, teacher=wide, student=STUDENT)["activations"]
        - estimate_bytes(config, teacher=wide, student=STUDENT)["activations"]
    )
    assert difference == 6 * 4 * (8 * 50 * 10**6 - 2**25)
