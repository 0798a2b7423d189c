"""Are our divergences those of TRL? Values and gradients of both, on random logits with masked positions.

    make bench-parity        (makes .venv-bench, an environment with TRL; the product does not depend on it)

Writes benchmarks/results/parity.json and docs/benchmarks/parity.md, and ends with status 1 if a difference is larger
than the tolerance that the table states.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from app.core.loss_config import (
    ForwardKlLoss,
    JsdLoss,
    LossConfig,
    ReverseKlLoss,
    SkewKlLoss,
    SkewReverseKlLoss,
    TopKKlLoss,
)
from benchmarks.machine import describe
from benchmarks.parity import peer
from benchmarks.parity.problem import (
    SEEDS,
    SHAPES,
    SHARPNESS,
    Value,
    hidden_problems,
    ours,
    ours_from_hidden,
    problems,
)
from benchmarks.parity.report import DOCUMENT, RESULTS, TOLERANCE, Row, document, write

BETAS = (0.1, 0.3, 0.5, 0.7, 0.9)
GKD = "GKDTrainer.generalized_jsd_loss"
CHUNKED = "DistillationTrainer, chunked loss"


@dataclass(frozen=True)
class Comparison:
    """One loss of ours and the function of TRL's that should agree with it."""

    config: LossConfig
    setting: str
    peer_name: str
    ours: Callable[[LossConfig, Any], Value]
    peer: Callable[[Any], Value]
    problems: Callable[[torch.dtype], Iterable[Any]]

    @property
    def precisions(self) -> tuple[torch.dtype, ...]:
        """TRL's chunked loss computes in float32, whatever it is given."""
        return (torch.float32, torch.float64) if self.ours is ours else (torch.float32,)


def comparisons() -> list[Comparison]:
    plain, hidden = (ours, problems), (ours_from_hidden, hidden_problems)

    def compare(config: LossConfig, setting: str, peer_name: str, function: Any, sides: Any = plain) -> Comparison:
        return Comparison(config, setting, peer_name, sides[0], function, sides[1])

    return [
        compare(ForwardKlLoss(), "", f"{GKD}, beta 0", partial(peer.generalized_jsd, beta=0)),
        compare(ReverseKlLoss(), "", f"{GKD}, beta 1", partial(peer.generalized_jsd, beta=1)),
        *[
            compare(JsdLoss(beta=b), f"beta {b}", f"{GKD}, beta {b}", partial(peer.generalized_jsd, beta=b))
            for b in BETAS
        ],
        compare(ForwardKlLoss(), "sliced", f"{CHUNKED}, beta 0", partial(peer.chunked, beta=0.0), hidden),
        compare(ReverseKlLoss(), "sliced", f"{CHUNKED}, beta 1", partial(peer.chunked, beta=1.0), hidden),
        compare(JsdLoss(beta=0.5), "beta 0.5, sliced", f"{CHUNKED}, beta 0.5", partial(peer.chunked, beta=0.5), hidden),
        compare(TopKKlLoss(top_k=8), "top_k 8", "forward KL with a tail bucket", partial(peer.top_k, k=8)),
        compare(SkewKlLoss(), "alpha 0.1", "forward KL to a mixture", partial(peer.skew, alpha=0.1, reverse=False)),
        compare(
            SkewReverseKlLoss(), "alpha 0.1", "reverse KL to a mixture", partial(peer.skew, alpha=0.1, reverse=True)
        ),
    ]


def measure(comparison: Comparison, dtype: torch.dtype) -> Row:
    """The largest differences over all problems. Of the value: relative, to 0.01 nats where it is below that. Of a
    gradient entry: relative to the largest one, to 1 per position where that is below (a saturated loss)."""
    value_difference = gradient_difference = 0.0
    cases = 0
    for problem in comparison.problems(dtype):
        own, other = comparison.ours(comparison.config, problem), comparison.peer(problem)
        positions = int(problem.mask_BT.sum())
        of_value = abs(own.loss - other.loss) / max(abs(other.loss), 0.01)
        largest = max(float(other.gradient.abs().max()), 1 / positions)
        of_gradient = float((own.gradient - other.gradient).abs().max()) / largest
        value_difference, gradient_difference = max(value_difference, of_value), max(gradient_difference, of_gradient)
        cases += 1
    return Row(
        loss=comparison.config.kind,
        setting=comparison.setting,
        trl=comparison.peer_name,
        precision=str(dtype).removeprefix("torch."),
        cases=cases,
        value_difference=value_difference,
        gradient_difference=gradient_difference,
    )


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    rows = [measure(comparison, dtype) for comparison in comparisons() for dtype in comparison.precisions]
    result = {
        "machine": describe(packages=("torch", "trl")),
        "problems": {"shapes": SHAPES, "sharpness": SHARPNESS, "seeds": len(SEEDS)},
        "tolerance": TOLERANCE,
        "rows": [vars(row) for row in rows],
    }
    write(result)
    print(document(result))
    print(f"written: {RESULTS}, {DOCUMENT}")
    sys.exit(not all(row.holds for row in rows))


if __name__ == "__main__":
    main()
