"""Sums of idle and used node-time by the hour, which the service fills from the rows that are there, and indexes
of lists that are read page by page

Revision ID: 0017
Revises: 0016
"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "usage_hours",
        sa.Column("hour", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("idle_node_s", sa.Double(), nullable=False),
        sa.Column("used_node_s", sa.Double(), nullable=False),
    )
    op.create_index("ix_node_intervals_state", "node_intervals", ["state", "end_at", "start_at"])
    op.create_index("ix_trainers_submitted", "trainers", ["submitted_at", "id"])
    op.create_index("ix_foreground_starts_delays", "foreground_starts", ["started_at", "delay_s"])
    op.drop_index("ix_foreground_starts_started_at", "foreground_starts")


def downgrade() -> None:
    op.create_index("ix_foreground_starts_started_at", "foreground_starts", ["started_at"])
    op.drop_index("ix_foreground_starts_delays", "foreground_starts")
    op.drop_index("ix_trainers_submitted", "trainers")
    op.drop_index("ix_node_intervals_state", "node_intervals")
    op.drop_table("usage_hours")
