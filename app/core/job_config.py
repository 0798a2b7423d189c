"""The one description of a distillation run, shared by the form, REST, the command line and the trainer.

Knows every setting, its default and its limits. Does not know models, files or databases: what needs a look
at the world (does this folder exist, do the tokenizers match) is checked by `model_facts` and the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, model_validator

from app.core.loss_config import LossConfig, SftLoss
from app.core.recipes import DEFAULT_RECIPE, RecipeName, with_recipe
from app.core.section import Settings

# --- models -------------------------------------------------------------------------------------------------


class TeacherConfig(Settings):
    model: str = Field(min_length=1, description="Hub id, local folder, or path of a .gguf file.")


class FromTeacherStudent(Settings):
    """A student made of some of the teacher's own layers; embeddings, final norm and head are copied."""

    kind: Literal["from_teacher"] = "from_teacher"
    layers: int = Field(ge=1, description="How many of the teacher's layers the student keeps.")
    choice: Literal["least_change", "even", "first"] = Field(
        "least_change",
        description="least_change: drop the layers without which the teacher's predictions change least; "
        "even: spread over the depth, first and last kept; first: the lowest ones.",
    )


class CheckpointStudent(Settings):
    """A student that exists already: any causal language model with the teacher's tokenizer."""

    kind: Literal["checkpoint"] = "checkpoint"
    model: str = Field(min_length=1, description="Hub id, local folder, or path of a .gguf file.")


StudentConfig = Annotated[FromTeacherStudent | CheckpointStudent, Field(discriminator="kind")]

# --- data ---------------------------------------------------------------------------------------------------


class _Data(Settings):
    template: Literal["chat", "alpaca", "plain"] = Field(
        "chat", description="chat: the tokenizer's own template; alpaca: '### Instruction'; plain: the text alone."
    )
    responses: Literal["given", "teacher", "student"] = Field(
        "given",
        description="given: the data's own responses, the teacher writes those that are missing; teacher: the teacher "
        "writes them all; student: rows without a response are prompts for the student's own samples only.",
    )
    teacher_states: Literal["auto", "on", "off"] = Field(
        "auto",
        description="The teacher's states of the data's rows, computed once and kept on disk, so that no step on them "
        "runs the teacher. auto: where the teacher writes them anyway, or the steps visit every row on average once; "
        "on: always when a loss reads the teacher; off: the teacher reads at every step.",
    )
    dev_rows: int = Field(32, ge=1, description="Rows held out from the end of the data for evaluation.")
    max_prompt_tokens: int = Field(512, ge=1, description="A longer prompt is refused, never cut.")
    max_response_tokens: int = Field(256, ge=1, description="Ground-truth responses are cut to this length.")


class DatasetData(_Data):
    """A data set uploaded to the service."""

    kind: Literal["dataset"] = "dataset"
    dataset_id: str = Field(min_length=1)


class FileData(_Data):
    """A JSONL file of canonical rows on the machine that trains (command line and benchmarks)."""

    kind: Literal["file"] = "file"
    path: Path


DataConfig = Annotated[DatasetData | FileData, Field(discriminator="kind")]

# --- sampling -----------------------------------------------------------------------------------------------


class _Sampling(Settings):
    max_new_tokens: int = Field(128, ge=1, description="Longest response the student may sample.")
    temperature: float = Field(1.0, gt=0, description="[ours] T = 1: samples come from the student itself.")
    top_p: float = Field(1.0, gt=0, le=1, description="[ours] 1: no nucleus cut.")
    candidates: int = Field(
        1,
        ge=1,
        le=16,
        description="[ours] Rows that are tried for each one that a batch takes: those on which the student is further "
        "from the teacher are likelier to be taken. Over a row's response that is a pass of the student; for prompts "
        "without one it has to answer first.",
    )
    skip_known: bool = Field(
        False,
        description="[ours] With several candidates: a row on which the last look found little is mostly passed over, "
        "so that the same looks choose from rows with more to learn.",
    )


class GroundTruthSampling(_Sampling):
    """Every batch is taken from the data (off-policy)."""

    kind: Literal["ground_truth"] = "ground_truth"


class _FreshSampling(_Sampling):
    batches_per_generation: int = Field(
        1,
        ge=1,
        le=64,
        description="[ours] Batches from the student that are sampled and corrected together, then used one after "
        "another. Decoding costs little more for many rows than for few; the later batches come from weights that are "
        "some steps old.",
    )


class OnPolicySampling(_FreshSampling):
    """Every batch is sampled from the student."""

    kind: Literal["on_policy"] = "on_policy"


class MixedSampling(_FreshSampling):
    """A fixed share of the batches is sampled from the student (GKD, Agarwal et al. 2024)."""

    kind: Literal["mixed"] = "mixed"
    student_fraction: float = Field(0.5, ge=0, le=1)


class AdaptiveOffPolicySampling(_FreshSampling):
    """DistiLLM's scheme: phi grows when the dev loss rises; fresh samples enter a FIFO replay buffer."""

    kind: Literal["adaptive_off_policy"] = "adaptive_off_policy"
    phi_start: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Share of batches from the student at the start. [ours] DistiLLM starts at 0: nothing is sampled "
        "(and SCRG has nothing to correct) until the dev loss rises.",
    )
    phi_step: float = Field(0.1, gt=0, le=1, description="Added to phi when the dev loss rises.")
    dev_loss_margin: float = Field(0.1, ge=0, description="Rise of the dev loss that counts.")
    buffer_size: int = Field(1000, ge=1, description="Sequences in the replay buffer.")


SamplingConfig = Annotated[
    GroundTruthSampling | OnPolicySampling | MixedSampling | AdaptiveOffPolicySampling, Field(discriminator="kind")
]


class ScrgConfig(Settings):
    """Sequence correction and re-generation. Every choice that the paper leaves open is a switch [ours]."""

    rounds: int = Field(1, ge=0, le=16, description="Corrections per fresh sample; 0 switches SCRG off.")
    teacher_token: Literal["sample", "greedy"] = Field("sample", description="The teacher's token at a position.")
    position: Literal["largest_kl", "first", "random"] = Field(
        "largest_kl", description="Which mismatch is the error: Eq. 3, or a control."
    )
    kl_direction: Literal["teacher_student", "student_teacher"] = Field("teacher_student", description="KL of Eq. 3.")
    no_mismatch: Literal["keep", "drop"] = Field(
        "keep", description="A sequence without a mismatch stays, or leaves the batch (a batch never becomes empty)."
    )
    eos_correction: Literal["stop", "skip"] = Field(
        "stop", description="Teacher's token is EOS: the sequence ends there, or the position is no candidate."
    )
    later_rounds: Literal["right_only", "anywhere"] = Field(
        "right_only", description="A later round stays right of earlier corrections, or may go anywhere."
    )
    store: Literal["corrected", "original"] = Field("corrected", description="What enters the replay buffer.")


# --- training and evaluation --------------------------------------------------------------------------------


class TrainingConfig(Settings):
    max_steps: int = Field(1000, ge=1, le=1_000_000_000, description="Optimizer steps.")
    batch_size: int = Field(8, ge=1, description="Sequences per micro-batch.")
    gradient_accumulation: int = Field(1, ge=1, description="Micro-batches per optimizer step.")
    bucket_by_length: bool = Field(
        False, description="Rows of like length share a batch: less padding, but batches are less mixed."
    )
    learning_rate: float = Field(5e-5, gt=0)
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_fraction: float = Field(0.05, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    seed: int = Field(0, ge=0, lt=2**63)
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="auto: bfloat16 compute where the device has it; master weights are float32 always."
    )
    logits: Literal["chunked", "whole"] = Field(
        "chunked", description="chunked: the loss runs over slices of positions and no [B, T, V] tensor is whole."
    )
    decoding: Literal["fast", "plain"] = Field(
        "fast",
        description="fast: sampling by a lean pass where the architecture has one, and the teacher corrects while the "
        "student writes where that comes to the same; plain: the model's own pass, and whole samples.",
    )
    log_every: int = Field(1, ge=1, description="Steps between progress events.")
    checkpoint_every: int = Field(
        100, ge=0, description="Steps between checkpoints; 0: only of the best student so far, and when it is paused."
    )
    keep_last: int = Field(2, ge=1, description="Checkpoints that are kept beside the best; older ones are removed.")


MetricName = Literal["kl_ts", "kl_st", "top1_agreement", "loss", "rouge_l", "exact_match"]
# The held-out measures that a student may be chosen by (`eval/<name>` of an evaluation), and which end of each is good.
BETTER: Mapping[MetricName, Literal["lower", "higher"]] = {
    "kl_ts": "lower",
    "kl_st": "lower",
    "top1_agreement": "higher",
    "loss": "lower",
    "rouge_l": "higher",
    "exact_match": "higher",
}


class WarmupConfig(Settings):
    """Fine-tuning on the data's own responses before distillation, as the papers' protocol has it."""

    teacher_sft_steps: int = Field(0, ge=0, description="Steps that fine-tune the teacher, before anything reads it.")
    student_sft_steps: int = Field(0, ge=0, description="Steps that fine-tune the student, before any evaluation.")
    learning_rate: float | None = Field(None, gt=0, description="Of both; left out: training.learning_rate.")


class EvaluationConfig(Settings):
    every_steps: int = Field(100, ge=1)
    select: Literal["best", "last"] = Field(
        "best",
        description="Whose weights are exported. best: of all evaluations after step 0 the one with the best metric, "
        "so that a run that gets worse towards its end loses nothing; last: those of the last step.",
    )
    metric: MetricName = Field("kl_ts", description="What best means: the held-out measure eval/<metric>.")
    rouge_rows: int = Field(16, ge=0, description="Held-out prompts that the student answers, greedily and sampled.")
    samples: int = Field(2, ge=0, description="Of the greedy answers, how many are shown as samples.")
    exact_match: bool = Field(False, description="Count answers that equal a reference: for tasks with a right answer.")
    temperatures: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        (), description="Temperatures at which the prompts are answered too, once per seed; none: greedily only."
    )
    own_samples: bool = Field(
        False,
        description="KL on the student's own samples (T = 1) and exposure bias; the teacher samples too.",
    )
    seeds: int = Field(3, ge=1, description="Sampling seeds of sampled measures: mean and standard deviation.")

    @model_validator(mode="after")
    def _what_is_measured_can_be(self) -> EvaluationConfig:
        reads_answers = self.metric in ("rouge_l", "exact_match") or self.exact_match
        if (reads_answers or self.temperatures or self.own_samples) and not self.rouge_rows:
            raise ValueError("measures of answers and samples need prompts; set rouge_rows to 1 or more")
        if self.metric == "exact_match" and not self.exact_match:
            raise ValueError("metric exact_match is not measured; set exact_match to true")
        return self


class DistillConfig(Settings):
    """A whole run. Sections that are left out are filled by `recipe`; `config` round-trips exactly as JSON."""

    recipe: RecipeName = Field(DEFAULT_RECIPE, description="Fills the sections that are left out.")
    teacher: TeacherConfig
    student: StudentConfig
    data: DataConfig
    sampling: SamplingConfig
    scrg: ScrgConfig
    losses: tuple[LossConfig, ...] = Field(min_length=1)
    warmup: WarmupConfig = WarmupConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    @model_validator(mode="before")
    @classmethod
    def _fill_from_recipe(cls, raw: Any, info: ValidationInfo) -> Any:
        """Adds what the recipe says about sections (or fields of sections) that `raw` leaves out."""
        return with_recipe(raw) if isinstance(raw, dict) and not info.context else raw

    @classmethod
    def stored(cls, raw: Any) -> DistillConfig:
        """A description as it was dumped, whole, perhaps by an earlier version: settings that are newer are at their
        own defaults, which change nothing, and not at what a recipe says today. Raises ValidationError."""
        return cls.model_validate(raw, context="stored")

    @model_validator(mode="after")
    def _consistent(self) -> DistillConfig:
        kinds = [loss.kind for loss in self.losses]
        if len(set(kinds)) != len(kinds):
            raise ValueError("losses: each kind may appear once; give the terms different kinds")
        only_ground_truth = all(isinstance(loss, SftLoss) and loss.rows == "ground_truth" for loss in self.losses)
        if only_ground_truth and self.sampling.kind != "ground_truth":
            raise ValueError(
                "losses: sft counts ground-truth rows only, so sampled batches would train on nothing; "
                "add a divergence or set sampling.kind to ground_truth"
            )
        if self.evaluation.metric == "rouge_l" and not self.evaluation.rouge_rows:
            raise ValueError("evaluation: the metric rouge_l needs answers; set rouge_rows to 1 or more")
        return self
