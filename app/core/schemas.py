"""REST shapes: what the API answers and accepts. OpenAPI is generated from these.

Knows field names and types. Does not know tables (the db package turns rows into these) or HTTP. What concerns asking
models is in `compare_schemas`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from app.core.job_config import DistillConfig

JobStatus = Literal["queued", "running", "paused", "succeeded", "failed", "cancelled"]
T = TypeVar("T")


class Shape(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Page(Shape, Generic[T]):
    """One cursor page; ask for the next with `after` = the last element's id (or seq)."""

    data: Sequence[T]
    has_more: bool


class RowProblem(Shape):
    row: int = Field(description="1-based row of the uploaded file.")
    message: str


class DatasetOut(Shape):
    id: str
    name: str
    format: Literal["prompt", "prompt_response", "messages", "alpaca", "sharegpt"]
    rows: int
    rows_with_response: int
    problems: Sequence[RowProblem] = Field(description="Rows that were left out, and why.")
    sha256: str
    created_at: datetime


class JobIn(Shape):
    name: str = Field(min_length=1, max_length=200)
    config: DistillConfig
    priority: int = Field(0, ge=-100, le=100, description="Higher runs first.")
    max_attempts: int = Field(3, ge=1, le=100, description="Failed attempts in a row before the job fails.")
    max_hours: float | None = Field(None, gt=0, description="Running time after which the job is ended.")


class JobError(Shape):
    code: str
    message: str


class JobOut(Shape):
    id: str
    name: str
    status: JobStatus
    config: Mapping[str, Any] = Field(description="The description as it was accepted, recipe filled in.")
    recipe: str
    priority: int
    attempt: int = Field(description="How often a worker took the job.")
    failures: int = Field(description="Attempts in a row that failed without saving a checkpoint.")
    max_attempts: int = Field(description="So many failures in a row end the job.")
    max_hours: float | None
    step: int
    max_steps: int
    tokens: int = Field(description="Response tokens trained on so far.")
    eta_s: float | None = Field(description="Seconds left, of a running job.")
    memory_bytes: int | None = Field(description="What training is estimated to need.")
    worker: str | None = Field(description="Who runs it, or ran it last.")
    waiting_reason: str | None = Field(description="Why a queued job waits, if for more than its turn.")
    not_before: datetime | None = Field(description="A job whose last attempt failed is not tried earlier.")
    cancel_requested: bool
    pause_requested: bool
    student_id: str | None
    teacher_id: str | None
    untrained_id: str | None
    error: JobError | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class RetryIn(Shape):
    from_checkpoint: bool = Field(
        True, description="Go on from the last checkpoint; false starts from nothing and deletes them."
    )


class CloneIn(Shape):
    """A stored job again, with changes: what is left out stays as it was."""

    name: str | None = Field(None, min_length=1, max_length=200)
    config: Mapping[str, Any] = Field(
        default_factory=dict,
        description="Merged into the stored config (RFC 7396: null removes). A section of another `kind` replaces the "
        "stored one, and another `recipe` fills what recipes fill.",
    )
    priority: int | None = Field(None, ge=-100, le=100)
    max_attempts: int | None = Field(None, ge=1, le=100)
    max_hours: float | None = Field(None, gt=0)


class CheckpointOut(Shape):
    step: int
    phase: str
    bytes: int
    best: bool = Field(description="No evaluation up to it was better.")
    model_id: str | None = Field(None, description="What it is called where models are asked; null during a warm-up.")


class CheckpointsOut(Shape):
    data: Sequence[CheckpointOut]


class DryRunOut(Shape):
    config: Mapping[str, Any]
    teacher_parameters: int
    student_parameters: int
    memory_bytes: Mapping[str, int] = Field(description="weights, gradients, optimizer, caches, activations, total.")
    seconds: float = Field(description="About how long it will run.")
    seconds_basis: str = Field(description="What that estimate rests on, in a sentence.")
    disk_bytes: Mapping[str, int] = Field(
        description="student, checkpoints and kept states of the teacher (each at its most), total."
    )
    warnings: Sequence[str]


class EventOut(Shape):
    seq: int
    attempt: int
    created_at: datetime
    event: Mapping[str, Any] = Field(description="One of app.core.events, by its `kind`.")


class Series(Shape):
    name: str
    points: list[tuple[int, float]] = Field(description="(step, value), down-sampled with the extremes kept.")


class MetricsOut(Shape):
    series: Sequence[Series]


class ModelOut(Shape):
    id: str
    kind: Literal["teacher", "untrained", "student"]
    name: str
    job_id: str | None
    source: str = Field(description="Where the weights come from: hub id, path, or folder in the artifact store.")
    parameters: int | None
    weights_sha256: str | None
    card: Mapping[str, Any] = Field(description="Recipe, data, metrics before and after.")
    tokens_per_s: float | None = Field(None, description="How fast it last answered, in its own computing time.")
    bytes: int | None = Field(None, description="Size of a distilled student's files.")
    teacher_id: str | None = Field(None, description="Of a student: the teacher of its job.")
    created_at: datetime


class WorkerOut(Shape):
    """A worker process, and what it does now."""

    name: str
    queue: str
    status: Literal["idle", "busy", "lost"] = Field(description="`lost`: it stopped reporting.")
    job_id: str | None
    comparison_id: str | None
    device: str = Field(description="The device it computes on, e.g. NVIDIA H200 or cpu.")
    memory_bytes: int = Field(description="Of the device, or of the machine for a cpu.")
    host: str
    pid: int
    versions: Mapping[str, str]
    started_at: datetime
    heartbeat_at: datetime


class WorkersOut(Shape):
    data: Sequence[WorkerOut]


class ProblemItem(Shape):
    """One thing that is wrong with the request."""

    loc: Sequence[str | int] = Field(description="Path in the request's body, e.g. config, student, layers.")
    msg: str
    type: str = Field(description="Stable name of the kind of problem.")


class Problem(Shape):
    """An error answer (RFC 9457, application/problem+json)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str = Field(description="Stable; app/core/errors.py lists them.")
    errors: Sequence[ProblemItem] = ()


class Health(Shape):
    status: Literal["ok", "unavailable"]
    checks: Mapping[str, str] = Field(default_factory=dict, description="ok, or what is wrong, by part.")


class RenameIn(Shape):
    name: str = Field(min_length=1, max_length=200)


class ConfigSchemaOut(Shape):
    json_schema: Mapping[str, Any]
    recipes: Mapping[str, Mapping[str, Any]]
