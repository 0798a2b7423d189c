"""Workers; curves that can be read thinned out; what retention needs.

Revision 0003, after 0002.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_DOCUMENT = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
_NOT_TRIMMED = sa.text("trimmed_at IS NULL")

# Every full range of `width` steps before the newest; later ones the program fills itself.
_FILL_RANGES = """
INSERT INTO metric_ranges
    (job_id, width, bucket, name, first_step, first, last_step, last, low_step, low, high_step, high)
SELECT DISTINCT m.job_id, {width}, m.step / {width}, m.name,
    first_value(m.step) OVER forward, first_value(m.value) OVER forward,
    first_value(m.step) OVER backward, first_value(m.value) OVER backward,
    first_value(m.step) OVER upward, first_value(m.value) OVER upward,
    first_value(m.step) OVER downward, first_value(m.value) OVER downward
FROM metrics m JOIN (SELECT job_id, max(step) AS newest FROM metrics GROUP BY job_id) j ON j.job_id = m.job_id
WHERE (m.step / {width} + 1) * {width} <= j.newest
WINDOW forward AS (PARTITION BY m.job_id, m.step / {width}, m.name ORDER BY m.step),
    backward AS (PARTITION BY m.job_id, m.step / {width}, m.name ORDER BY m.step DESC),
    upward AS (PARTITION BY m.job_id, m.step / {width}, m.name ORDER BY m.value, m.step),
    downward AS (PARTITION BY m.job_id, m.step / {width}, m.name ORDER BY m.value DESC, m.step)
"""


def upgrade() -> None:
    _create_workers()
    _order_metrics_by("step", "name")
    _create_metric_ranges()
    op.add_column("jobs", sa.Column("trimmed_at", _TIME))
    op.create_index(
        "ix_jobs_untrimmed", "jobs", ["finished_at"], sqlite_where=_NOT_TRIMMED, postgresql_where=_NOT_TRIMMED
    )


def downgrade() -> None:
    op.drop_index("ix_jobs_untrimmed", "jobs")
    op.drop_column("jobs", "trimmed_at")
    op.drop_table("metric_ranges")
    _order_metrics_by("name", "step")
    op.drop_table("workers")


def _create_workers() -> None:
    op.create_table(
        "workers",
        sa.Column("name", sa.String(), primary_key=True),
        sa.Column("queue", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("device", sa.String(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("versions", _DOCUMENT, nullable=False),
        sa.Column("started_at", _TIME, nullable=False),
        sa.Column("heartbeat_at", _TIME, nullable=False),
    )


def _order_metrics_by(*columns: str) -> None:
    """Another order of the primary key's columns, which SQLite can only give to a new table."""
    if op.get_bind().dialect.name == "postgresql":
        op.drop_constraint("metrics_pkey", "metrics")
        op.create_primary_key("metrics_pkey", "metrics", ["job_id", *columns])
        return
    types: dict[str, sa.types.TypeEngine[Any]] = {"step": sa.Integer(), "name": sa.String()}
    op.create_table(
        "metrics_in_order",
        sa.Column("job_id", sa.String(), sa.ForeignKey("jobs.id"), primary_key=True),
        *(sa.Column(name, types[name], primary_key=True) for name in columns),
        sa.Column("value", sa.Double(), nullable=False),
    )
    op.execute("INSERT INTO metrics_in_order (job_id, step, name, value) SELECT job_id, step, name, value FROM metrics")
    op.drop_table("metrics")
    op.rename_table("metrics_in_order", "metrics")


def _create_metric_ranges() -> None:
    op.create_table(
        "metric_ranges",
        sa.Column("job_id", sa.String(), sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("width", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("bucket", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("name", sa.String(), primary_key=True),
        *(
            column
            for point in ("first", "last", "low", "high")
            for column in (
                sa.Column(f"{point}_step", sa.Integer(), nullable=False),
                sa.Column(point, sa.Double(), nullable=False),
            )
        ),
    )
    newest = op.get_bind().scalar(sa.text("SELECT max(step) FROM metrics")) or 0
    width = 4
    while width <= newest:
        op.execute(_FILL_RANGES.format(width=width))
        width *= 4
