"""Kept sums: node-time of each user's week, and shares of node-time of hours that are over

Revision ID: 0032
Revises: 0031
"""

import time

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

_WEEK_S, _FIRST_MONDAY_S = 7 * 24 * 3600, 4 * 24 * 3600


def upgrade() -> None:
    op.create_table(
        "week_uses",
        sa.Column("week_at", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("user_name", sa.String(63), primary_key=True),
        sa.Column("node_s", sa.Double(), nullable=False),
    )
    op.create_table(
        "occupancy_hours",
        sa.Column("hour", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("nodes", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
    )
    now = int(time.time())
    week_at = now - (now - _FIRST_MONDAY_S) % _WEEK_S
    began = f"CASE WHEN f.launched_at > {week_at} THEN f.launched_at ELSE {week_at} END"
    op.execute(
        "INSERT INTO week_uses (week_at, user_name, node_s) "
        f"SELECT {week_at}, COALESCE(t.user_name, ''), SUM(f.ended_at - {began}) "
        "FROM fragments f JOIN trainers t ON t.id = f.trainer_id "
        f"WHERE f.ended_at > {week_at} AND f.cause <> 'never started' GROUP BY COALESCE(t.user_name, '')"
    )


def downgrade() -> None:
    op.drop_table("occupancy_hours")
    op.drop_table("week_uses")
