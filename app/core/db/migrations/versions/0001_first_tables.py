"""The first tables: datasets, models, jobs, events, metrics, comparisons.

Revision 0001, the first.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_DOCUMENT = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    _create_datasets_and_models()
    _create_jobs()
    _create_events_and_metrics()
    _create_comparisons()


def downgrade() -> None:
    for table in ("comparisons", "metrics", "events", "jobs", "models", "datasets"):
        op.drop_table(table)


def _create_datasets_and_models() -> None:
    op.create_table(
        "datasets",
        sa.Column("id", sa.String(), primary_key=True),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("format", sa.String(), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("rows_with_response", sa.Integer(), nullable=False),
        sa.Column("problems", _DOCUMENT, nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
    )
    op.create_table(
        "models",
        sa.Column("id", sa.String(), primary_key=True),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("job_id", sa.String()),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("parameters", sa.BigInteger()),
        sa.Column("weights_sha256", sa.String()),
        sa.Column("card", _DOCUMENT, nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
    )
    op.create_index("ix_models_job_id", "models", ["job_id"])
    is_teacher = sa.text("kind = 'teacher'")
    op.create_index(
        "ux_models_teacher_source",
        "models",
        ["source"],
        unique=True,
        sqlite_where=is_teacher,
        postgresql_where=is_teacher,
    )


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(), primary_key=True),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("config", _DOCUMENT, nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("idempotency_key", sa.String(), unique=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("max_steps", sa.Integer(), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("worker", sa.String()),
        sa.Column("last_seq", sa.Integer(), nullable=False),
        sa.Column("error_code", sa.String()),
        sa.Column("error_message", sa.String()),
        sa.Column("teacher_id", sa.String(), sa.ForeignKey("models.id")),
        sa.Column("untrained_id", sa.String(), sa.ForeignKey("models.id")),
        sa.Column("student_id", sa.String(), sa.ForeignKey("models.id")),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("queued_at", _TIME, nullable=False),
        sa.Column("announced_at", _TIME),
        sa.Column("started_at", _TIME),
        sa.Column("heartbeat_at", _TIME),
        sa.Column("finished_at", _TIME),
    )
    op.create_index("ix_jobs_claim", "jobs", ["status", sa.text("priority DESC"), "id"])
    op.create_index("ix_jobs_status_id", "jobs", ["status", "id"])


def _create_events_and_metrics() -> None:
    op.create_table(
        "events",
        sa.Column("job_id", sa.String(), sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("seq", sa.Integer(), primary_key=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("payload", _DOCUMENT, nullable=False),
    )
    op.create_table(
        "metrics",
        sa.Column("job_id", sa.String(), sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("name", sa.String(), primary_key=True),
        sa.Column("step", sa.Integer(), primary_key=True),
        sa.Column("value", sa.Double(), nullable=False),
    )


def _create_comparisons() -> None:
    op.create_table(
        "comparisons",
        sa.Column("id", sa.String(), primary_key=True),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("request", _DOCUMENT, nullable=False),
        sa.Column("answers", _DOCUMENT, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("worker", sa.String()),
        sa.Column("error_code", sa.String()),
        sa.Column("error_message", sa.String()),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("queued_at", _TIME, nullable=False),
        sa.Column("announced_at", _TIME),
        sa.Column("heartbeat_at", _TIME),
        sa.Column("finished_at", _TIME),
    )
    op.create_index("ix_comparisons_status_id", "comparisons", ["status", "id"])
