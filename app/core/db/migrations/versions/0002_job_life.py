"""What a job's life needs: pauses, failed attempts and back-off, progress, limits, and what it waits for.

Revision 0002, after 0001.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def _columns() -> list[sa.Column]:
    return [
        sa.Column("pause_requested", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("failures", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("max_attempts", sa.Integer(), nullable=False, server_default="3"),
        sa.Column("not_before", _TIME),
        sa.Column("waiting_reason", sa.String()),
        sa.Column("training_events", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("tokens", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("eta_s", sa.Double()),
        sa.Column("memory_bytes", sa.BigInteger()),
        sa.Column("disk_needed_bytes", sa.BigInteger()),
        sa.Column("max_hours", sa.Double()),
        sa.Column("used_s", sa.Double(), nullable=False, server_default="0"),
        sa.Column("attempt_started_at", _TIME),
    ]


def upgrade() -> None:
    for column in _columns():
        op.add_column("jobs", column)


def downgrade() -> None:
    for column in reversed(_columns()):
        op.drop_column("jobs", column.name)
