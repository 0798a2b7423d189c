"""A step that cannot be taken says which term is to blame, and leaves the weights as they were."""

from __future__ import annotations

import pytest

from app.core.errors import NonFiniteLoss
from tests.worker.distill.conftest import MakeConfig
from worker.distill.assembly import assemble
from worker.distill.export import weights_sha256
from worker.distill.step import Stepper


@pytest.mark.parametrize(
    ("weights", "blamed"),
    [
        ({"sft": 1e25, "forward_kl": 1.0}, r"the gradient of sft alone is not either"),
        ({"sft": 1.0, "forward_kl": 1e25}, r"the gradient of forward_kl alone is not either"),
        ({"sft": 1e25, "forward_kl": 1e25}, r"the gradient of sft and forward_kl alone is not either"),
    ],
)
def test_the_terms_with_a_bad_gradient_are_named(
    weights: dict[str, float], blamed: str, make_config: MakeConfig
) -> None:
    """Losses that float32 holds, with gradients whose norm it does not hold."""
    config = make_config(
        losses=[{"kind": kind, "weight": weight} for kind, weight in weights.items()],
        sampling={"kind": "ground_truth", "max_new_tokens": 4},
        training={"gradient_accumulation": 2},
    )
    run = assemble(config, emit=lambda event: None, should_stop=lambda: None)
    before = weights_sha256(run.student.model)
    with pytest.raises(NonFiniteLoss, match=r"step 5: the gradient is not finite.*" + blamed):
        Stepper(run).take(5)
    assert weights_sha256(run.student.model) == before
