"""The tables. Knows columns, keys and indexes; does not know queries (one module per resource has those).

Times are aware UTC on both back ends; documents (configs, events, answers) are JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, DateTime, Dialect, ForeignKey, Index, String, TypeDecorator, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class UtcDateTime(TypeDecorator[datetime]):
    """Aware UTC in Python; SQLite, which has no time zones, stores the naive UTC value."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("naive datetime: give an aware one")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class StoredText(TypeDecorator[str]):
    """Text with U+FFFD for NUL, which PostgreSQL cannot store; documents are treated alike (`session.make_engine`)."""

    impl = String()
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else value.replace("\0", "\ufffd")


class Base(DeclarativeBase):
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy reads it as a plain class attribute
        datetime: UtcDateTime(),
        str: StoredText(),
        Mapping[str, Any]: JSON().with_variant(JSONB(), "postgresql"),
        Sequence[Any]: JSON().with_variant(JSONB(), "postgresql"),
    }


class Dataset(Base):
    """An uploaded data set; its canonical rows are the artifact `datasets/{id}.jsonl`."""

    __tablename__ = "datasets"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    format: Mapped[str]
    rows: Mapped[int]
    rows_with_response: Mapped[int]
    problems: Mapped[Sequence[Any]]
    sha256: Mapped[str]
    created_at: Mapped[datetime]


class Model(Base):
    """A teacher (one row per source), a job's untrained student, or its distilled student."""

    __tablename__ = "models"
    __table_args__ = (
        Index(
            "ux_models_teacher_source",
            "source",
            unique=True,
            sqlite_where=text("kind = 'teacher'"),
            postgresql_where=text("kind = 'teacher'"),
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str]
    name: Mapped[str]
    # No foreign key: jobs points here already, and SQLite cannot add one side of a cycle later.
    job_id: Mapped[str | None] = mapped_column(index=True)
    source: Mapped[str]
    parameters: Mapped[int | None] = mapped_column(BigInteger)
    weights_sha256: Mapped[str | None]
    card: Mapped[Mapping[str, Any]]
    tokens_per_s: Mapped[float | None]  # how fast it last answered, in its own computing time
    created_at: Mapped[datetime]


class Job(Base):
    """A distillation job. `attempt` counts claims; every write by a worker must carry the current one."""

    __tablename__ = "jobs"
    __table_args__ = (
        Index("ix_jobs_claim", "status", text("priority DESC"), "id"),  # claim_next reads its first row
        Index("ix_jobs_status_id", "status", "id"),  # pages by status; pages of all jobs use the primary key
        Index(
            "ix_jobs_untrimmed",
            "finished_at",
            sqlite_where=text("trimmed_at IS NULL"),
            postgresql_where=text("trimmed_at IS NULL"),
        ),  # retention reads its first rows
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    status: Mapped[str]
    config: Mapped[Mapping[str, Any]]
    priority: Mapped[int]
    idempotency_key: Mapped[str | None] = mapped_column(unique=True)
    attempt: Mapped[int] = mapped_column(default=0)
    step: Mapped[int] = mapped_column(default=0)
    max_steps: Mapped[int]
    cancel_requested: Mapped[bool] = mapped_column(default=False)
    pause_requested: Mapped[bool] = mapped_column(default=False)
    failures: Mapped[int] = mapped_column(default=0)  # attempts in a row that failed without saving a checkpoint
    max_attempts: Mapped[int] = mapped_column(default=3)
    not_before: Mapped[datetime | None]  # a queued job that failed is not tried earlier
    waiting_reason: Mapped[str | None]  # why a queued job waits, for people
    training_events: Mapped[int] = mapped_column(default=0)  # stored since the last start from nothing
    tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    eta_s: Mapped[float | None]
    memory_bytes: Mapped[int | None] = mapped_column(BigInteger)  # what training is estimated to need
    disk_needed_bytes: Mapped[int | None] = mapped_column(BigInteger)  # that a full disk must have free again
    max_hours: Mapped[float | None]
    used_s: Mapped[float] = mapped_column(default=0.0)  # by earlier attempts, since the last retry
    attempt_started_at: Mapped[datetime | None]
    worker: Mapped[str | None]
    last_seq: Mapped[int] = mapped_column(default=0)  # number of the newest event; counting here leaves no holes
    error_code: Mapped[str | None]
    error_message: Mapped[str | None]
    teacher_id: Mapped[str | None] = mapped_column(ForeignKey("models.id"))
    untrained_id: Mapped[str | None] = mapped_column(ForeignKey("models.id"))
    student_id: Mapped[str | None] = mapped_column(ForeignKey("models.id"))
    created_at: Mapped[datetime]
    queued_at: Mapped[datetime]
    announced_at: Mapped[datetime | None]
    started_at: Mapped[datetime | None]
    heartbeat_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    trimmed_at: Mapped[datetime | None]  # when retention removed its events and curves


class EventRow(Base):
    """One progress event; the primary key is also the cursor."""

    __tablename__ = "events"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    attempt: Mapped[int]
    created_at: Mapped[datetime]
    payload: Mapped[Mapping[str, Any]]


class Metric(Base):
    """One number of one step, for curves; the current attempt's only. Written in the order of the key."""

    __tablename__ = "metrics"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[float]


class MetricRange(Base):
    """What one metric did in the steps `bucket * width` to `(bucket + 1) * width - 1`: its first, last, lowest and
    highest point, for curves too long to read point by point. `curves.py` says which ranges exist."""

    __tablename__ = "metric_ranges"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    width: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    bucket: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str] = mapped_column(primary_key=True)
    first_step: Mapped[int]
    first: Mapped[float]
    last_step: Mapped[int]
    last: Mapped[float]
    low_step: Mapped[int]
    low: Mapped[float]
    high_step: Mapped[int]
    high: Mapped[float]


class Worker(Base):
    """A worker process that reported itself; a new process of the same name takes the row over."""

    __tablename__ = "workers"

    name: Mapped[str] = mapped_column(primary_key=True)
    queue: Mapped[str]
    host: Mapped[str]
    pid: Mapped[int]
    device: Mapped[str]
    memory_bytes: Mapped[int] = mapped_column(BigInteger)
    versions: Mapped[Mapping[str, Any]]
    started_at: Mapped[datetime]
    heartbeat_at: Mapped[datetime]


class Comparison(Base):
    """Something that a comparing worker does: answers one conversation with several models (`origin` page, chat or
    batch), or reads an answer with two of them (divergence). `attempt` fences writes as a job's does."""

    __tablename__ = "comparisons"
    __table_args__ = (
        Index("ix_comparisons_claim", "status", "rank", "created_at", "id"),  # claim_next reads its first row
        Index("ix_comparisons_origin_id", "origin", "id"),
        Index("ix_comparisons_parent_row", "parent_id", "row"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    origin: Mapped[str] = mapped_column(default="page")
    rank: Mapped[int] = mapped_column(default=0)  # lower runs first: a batch's rows wait behind what people wait for
    parent_id: Mapped[str | None]  # of a divergence its comparison, of a batch's row the batch
    row: Mapped[int | None]  # 1-based row of the data set
    status: Mapped[str]
    request: Mapped[Mapping[str, Any]]
    history: Mapped[Mapping[str, Any]]  # by model id: earlier turns, as each model saw them
    answers: Mapped[Sequence[Any]]
    token_ids: Mapped[Mapping[str, Any]]  # by model id: the answer exactly, which its text is not
    result: Mapped[Mapping[str, Any]]  # the divergence, or a row's reference, scores and verdicts
    hidden: Mapped[bool] = mapped_column(default=False)
    vote: Mapped[str | None]
    cancel_requested: Mapped[bool] = mapped_column(default=False)
    judge_status: Mapped[str | None] = mapped_column(index=True)  # waiting, taken or done; null where none is asked
    judged_at: Mapped[datetime | None]  # when a judge took the row
    attempt: Mapped[int] = mapped_column(default=0)
    worker: Mapped[str | None]
    error_code: Mapped[str | None]
    error_message: Mapped[str | None]
    created_at: Mapped[datetime]
    queued_at: Mapped[datetime]
    announced_at: Mapped[datetime | None]
    heartbeat_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class Vote(Base):
    """One blind vote; `model_a` is the smaller id of the pair, so that a pair is one group."""

    __tablename__ = "votes"
    __table_args__ = (Index("ix_votes_pair", "model_a", "model_b", "outcome"),)

    comparison_id: Mapped[str] = mapped_column(primary_key=True)
    model_a: Mapped[str]
    model_b: Mapped[str]
    outcome: Mapped[str]  # a, b, tie or both_bad
    created_at: Mapped[datetime]


class Batch(Base):
    """A data set asked row by row; its rows are comparisons, and its status is theirs."""

    __tablename__ = "batches"

    id: Mapped[str] = mapped_column(primary_key=True)
    request: Mapped[Mapping[str, Any]]
    rows: Mapped[int]
    judge: Mapped[bool]
    cancel_requested: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[datetime]
