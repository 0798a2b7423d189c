"""Typed progress events: what a training run says about itself, one frozen class per kind.

Knows the shapes. Does not know where they go: the trainer calls `emit(event)`, the recorder stores them as JSON
rows, the API and the browser read them back with `parse_event`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

# The phases in which weights change, in their order.
TrainedPhase = Literal["teacher_sft", "student_sft", "training"]


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StatusChanged(_Event):
    """Written by whoever changes the job's status, in the same transaction."""

    kind: Literal["status"] = "status"
    status: str
    code: str | None = None
    message: str | None = None


class PhaseProgress(_Event):
    """A stretch of work that is not a training step: loading, teacher responses, warm-up, evaluation, export."""

    kind: Literal["phase"] = "phase"
    phase: Literal[
        "loading",
        "teacher_sft",
        "teacher_responses",
        "teacher_states",
        "student_sft",
        "evaluating",
        "training",
        "exporting",
    ]
    done: int = 0
    total: int = 0


class RunStarted(_Event):
    """Models and data are loaded; sizes are what was found, not what was asked for."""

    kind: Literal["started"] = "started"
    teacher_parameters: int
    student_parameters: int
    vocabulary_size: int
    train_rows: int
    dev_rows: int
    max_steps: int
    device: str
    precision: str


class StepDone(_Event):
    """One optimizer step. `metrics` is flat (`loss/total`, `loss/dac_kl`, `dac_kl/kept_mass`, `scrg/mismatch_rate`,
    `time/generate_s`, ...), so a new loss shows up everywhere without a new field."""

    kind: Literal["step"] = "step"
    step: int
    max_steps: int
    source: Literal["ground_truth", "fresh", "replay"]
    tokens: int = Field(description="Response tokens that carried loss in this step.")
    tokens_per_s: float
    eta_s: float
    metrics: Mapping[str, float]


class Evaluated(_Event):
    """A pass over the held-out rows; `metrics` holds `eval/kl_ts`, `eval/rouge_l`, `eval/loss`, ..."""

    kind: Literal["evaluated"] = "evaluated"
    step: int
    metrics: Mapping[str, float]


class SampleDrawn(_Event):
    """The student's answer to a held-out prompt at some step."""

    kind: Literal["sample"] = "sample"
    step: int
    prompt: str
    text: str
    reference: str | None = None


class Correction(_Event):
    """One SCRG example: `before` + struck `student_token` becomes `before` + `teacher_token` + `regenerated`."""

    kind: Literal["correction"] = "correction"
    step: int
    prompt: str
    before: str
    student_token: str
    teacher_token: str
    dropped: str
    regenerated: str
    error_position: int
    kl: float


class Warned(_Event):
    """Something a user should know although the run goes on (an ignored setting, a collapsed mask)."""

    kind: Literal["warning"] = "warning"
    code: str
    message: str
    step: int | None = None


class CheckpointSaved(_Event):
    """All of the run's state after `step` steps of `phase` is on disk; `best`: no evaluation so far was better."""

    kind: Literal["checkpoint"] = "checkpoint"
    step: int
    bytes: int
    best: bool
    phase: TrainedPhase = "training"


class Resumed(_Event):
    """The run goes on behind `step` steps of `phase`. It had told `training_events` training events by then, and tells
    those behind them again, the same ones."""

    kind: Literal["resumed"] = "resumed"
    step: int
    training_events: int
    phase: TrainedPhase = "training"


class StudentExported(_Event):
    """`step` is the one whose weights were taken: the best, or the last."""

    kind: Literal["exported"] = "exported"
    folder: str
    parameters: int
    weights_sha256: str
    step: int | None = None


Event = Annotated[
    StatusChanged
    | PhaseProgress
    | RunStarted
    | StepDone
    | Evaluated
    | SampleDrawn
    | Correction
    | Warned
    | CheckpointSaved
    | Resumed
    | StudentExported,
    Field(discriminator="kind"),
]
Emit = Callable[[Event], None]


def is_training_event(event: Event) -> bool:
    """Whether `event` belongs to the run's own course, which a resumed run tells again step by step: `Resumed` counts
    these. Phases, checkpoints and changes of status belong to an attempt."""
    if isinstance(event, Warned):
        return event.step is not None
    return isinstance(event, StepDone | Evaluated | SampleDrawn | Correction)


_ADAPTER: TypeAdapter[Event] = TypeAdapter(Event)


def parse_event(payload: Mapping[str, Any]) -> Event:
    """The event whose `model_dump(mode="json")` is `payload`. Raises pydantic.ValidationError for anything else."""
    return _ADAPTER.validate_python(payload)
