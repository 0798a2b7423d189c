"""Settings of the losses: one frozen class per kind, joined in `LossConfig` by `kind`.

Knows defaults and limits. Does not know formulas (`worker/distill/losses`) or the rest of a job's description.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from app.core.section import Settings


class _Loss(Settings):
    weight: float = Field(1.0, gt=0)


class SftLoss(_Loss):
    kind: Literal["sft"] = "sft"
    rows: Literal["ground_truth", "all"] = Field(
        "ground_truth", description="[ours] Cross-entropy on the student's own samples makes training collapse."
    )


class ForwardKlLoss(_Loss):
    """KL(teacher‖student)."""

    kind: Literal["forward_kl"] = "forward_kl"


class ReverseKlLoss(_Loss):
    """KL(student‖teacher)."""

    kind: Literal["reverse_kl"] = "reverse_kl"


class JsdLoss(_Loss):
    """Both against their mixture.

    The generalised Jensen-Shannon divergence of GKD, Eq. 1.
    """

    kind: Literal["jsd"] = "jsd"
    beta: float = Field(
        0.5, gt=0, lt=1, description="The teacher's share of the mixture; low acts like forward_kl, high like reverse."
    )


class SkewKlLoss(_Loss):
    """KL(teacher‖mixture).

    The skewed KL divergence of DistiLLM.
    """

    kind: Literal["skew_kl"] = "skew_kl"
    alpha: float = Field(0.1, gt=0, lt=1, description="The teacher's share of the mixture; the student has the rest.")


class SkewReverseKlLoss(_Loss):
    """KL(student‖mixture).

    The skewed reverse KL divergence of DistiLLM.
    """

    kind: Literal["skew_reverse_kl"] = "skew_reverse_kl"
    alpha: float = Field(0.1, gt=0, lt=1, description="The student's share of the mixture; the teacher has the rest.")


class TvdLoss(_Loss):
    """Total variation, 0 to 1."""

    kind: Literal["tvd"] = "tvd"


class TopKKlLoss(_Loss):
    """KL of k tokens and a rest.

    The teacher's likeliest tokens; all others are one class. A control for dac_kl's learned mask.
    """

    kind: Literal["topk_kl"] = "topk_kl"
    top_k: int = Field(32, ge=1, description="[ours] How many tokens are kept.")


class TopPKlLoss(_Loss):
    """KL of a nucleus and a rest.

    The fewest tokens that hold the teacher's mass top_p; all others are one class. A control for dac_kl's learned mask.
    """

    kind: Literal["topp_kl"] = "topp_kl"
    top_p: float = Field(0.95, gt=0, le=1, description="[ours] The teacher's mass that the kept tokens hold.")
    max_classes: int = Field(256, ge=1, description="[ours] Largest nucleus, the one of a flat distribution.")


class DacKlLoss(_Loss):
    """Distribution adaptive clipping KL (Eq. 6-8)."""

    kind: Literal["dac_kl"] = "dac_kl"
    top_k: int = Field(256, ge=2, description="[ours] Teacher classes f_sub sees; the rest is one bucket.")
    hidden_size: int = Field(64, ge=1, description="[ours] Width of f_sub's two hidden layers.")
    kappa: float = Field(50.0, gt=0, description="[ours] Steepness of the sigmoid mask.")
    quantiles: Literal["all", "beside_target"] = Field(
        "beside_target",
        description="[ours] Of which mass the bounds are quantiles. all: the literal reading, by which nothing but the "
        "target can be kept where the teacher is nearly certain; beside_target: of what the target does not hold.",
    )
    normalise: Literal["none", "renorm", "rest_bucket"] = Field(
        "rest_bucket", description="none: the paper's literal form; rest_bucket: what is clipped is one more class."
    )
    divergence: Literal["forward", "reverse", "skew", "skew_reverse"] = Field(
        "forward", description="What is clipped. forward: the paper's KL(teacher‖student); [ours] the others."
    )
    alpha: float = Field(0.1, gt=0, lt=1, description="[ours] Share of the first in the mixture of skewed divergences.")
    subnet_objective: Literal["density", "minimise", "fixed"] = Field(
        "density", description="[ours] What f_sub is trained for; fixed: the bounds below, no network."
    )
    density_gain: Literal["absolute", "relative"] = Field(
        "relative",
        description="[ours] What f_sub wants to hold under `density`. absolute: the divergence in nats; relative: the "
        "share of the divergence beside the target, which a nearly certain teacher does not make small.",
    )
    density_price: float = Field(
        0.002, ge=0, description="[ours] Price of one kept class under `density`, in nats or as a share."
    )
    start_lower: float = Field(0.02, gt=0, lt=1, description="[ours] Where f_sub's lower bound starts.")
    start_upper: float = Field(0.98, gt=0, lt=1, description="[ours] Where f_sub's upper bound starts.")
    fixed_lower: float = Field(0.0, ge=0, le=1)
    fixed_upper: float = Field(0.95, ge=0, le=1)
    min_kept_mass: float = Field(
        0.1, gt=0, lt=1, description="[ours] Floor on the kept share of the teacher mass beside the target class."
    )
    floor_alarm_share: float = Field(0.5, gt=0, le=1, description="Warn when the floor holds more positions.")
    subnet_lr_factor: float = Field(10.0, gt=0, description="[ours] f_sub's learning rate over the student's.")

    @model_validator(mode="after")
    def _bounds_in_order(self) -> DacKlLoss:
        if self.fixed_lower >= self.fixed_upper:
            raise ValueError("fixed_lower must be below fixed_upper")
        if self.start_lower >= self.start_upper:
            raise ValueError("start_lower must be below start_upper")
        return self


class SpanLoss(_Loss):
    """L2 distance of adjacent tokens' Hadamard products inside phrases (Eq. 10)."""

    kind: Literal["span"] = "span"
    chunker: Literal["textblob", "spacy", "words", "random"] = Field(
        "textblob", description="random: spans of textblob's lengths at random places (a control)."
    )
    spacy_pipeline: str = Field("en_core_web_sm", description="Installed pipeline; read when chunker is spacy.")
    distance: Literal["l2_squared", "l2"] = "l2_squared"
    average: Literal["pairs", "spans"] = Field("pairs", description="[ours] What the sum is divided by.")


LossConfig = Annotated[
    SftLoss
    | ForwardKlLoss
    | ReverseKlLoss
    | JsdLoss
    | SkewKlLoss
    | SkewReverseKlLoss
    | TvdLoss
    | TopKKlLoss
    | TopPKlLoss
    | DacKlLoss
    | SpanLoss,
    Field(discriminator="kind"),
]
