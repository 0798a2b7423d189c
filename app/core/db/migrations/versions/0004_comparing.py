"""Streamed comparisons, votes and batches.

Revision 0004, after 0003.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_DOCUMENT = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
_INDEXES = {
    "ix_comparisons_claim": ["status", "rank", "created_at", "id"],
    "ix_comparisons_origin_id": ["origin", "id"],
    "ix_comparisons_parent_row": ["parent_id", "row"],
    "ix_comparisons_judge_status": ["judge_status"],
}


def upgrade() -> None:
    for column in _added():
        op.add_column("comparisons", column)
    op.add_column("models", sa.Column("tokens_per_s", sa.Double()))
    op.drop_index("ix_comparisons_status_id", "comparisons")
    for name, columns in _INDEXES.items():
        op.create_index(name, "comparisons", columns)
    op.create_table(
        "votes",
        sa.Column("comparison_id", sa.String(), primary_key=True),
        sa.Column("model_a", sa.String(), nullable=False),
        sa.Column("model_b", sa.String(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
    )
    op.create_index("ix_votes_pair", "votes", ["model_a", "model_b", "outcome"])
    op.create_table(
        "batches",
        sa.Column("id", sa.String(), primary_key=True),
        sa.Column("request", _DOCUMENT, nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("judge", sa.Boolean(), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
    )


def downgrade() -> None:
    op.execute("DELETE FROM comparisons WHERE origin <> 'page'")
    op.drop_table("batches")
    op.drop_table("votes")
    op.drop_column("models", "tokens_per_s")
    for name in _INDEXES:
        op.drop_index(name, "comparisons")
    op.create_index("ix_comparisons_status_id", "comparisons", ["status", "id"])
    for column in _added():
        op.drop_column("comparisons", column.name)


def _added() -> list[sa.Column]:
    return [
        # Defaults of the server are for the rows that are there; both back ends want them.
        sa.Column("origin", sa.String(), nullable=False, server_default="page"),
        sa.Column("rank", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("parent_id", sa.String()),
        sa.Column("row", sa.Integer()),
        sa.Column("history", _DOCUMENT, nullable=False, server_default="{}"),
        sa.Column("token_ids", _DOCUMENT, nullable=False, server_default="{}"),
        sa.Column("result", _DOCUMENT, nullable=False, server_default="{}"),
        sa.Column("hidden", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("vote", sa.String()),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("judge_status", sa.String()),
        sa.Column("judged_at", _TIME),
    ]
