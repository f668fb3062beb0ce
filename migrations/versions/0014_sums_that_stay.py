"""Sums of what fragments were, which outlive the fragments' rows

Revision ID: 0014
Revises: 0013
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_SUMS = {
    "past_node_s": "ended_at - launched_at",
    "past_warm_up_node_s": "coalesce(training_at, ended_at) - launched_at",
}


def upgrade() -> None:
    op.create_table(
        "harvests",
        sa.Column("day", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("node_s", sa.Double(), nullable=False),
    )
    # PostgreSQL rounds in a cast, SQLite truncates.
    day = "floor(ended_at / 86400)" if op.get_bind().dialect.name == "postgresql" else "ended_at / 86400"
    op.execute(
        f"INSERT INTO harvests (day, node_s) SELECT CAST({day} AS INTEGER), sum(ended_at - training_at) "
        "FROM fragments WHERE ended_at IS NOT NULL AND training_at IS NOT NULL GROUP BY 1"
    )
    for column, seconds in _SUMS.items():
        op.add_column("trainers", sa.Column(column, sa.Double(), nullable=False, server_default="0"))
        op.execute(
            f"UPDATE trainers SET {column} = coalesce((SELECT sum({seconds}) FROM fragments "
            "WHERE fragments.trainer_id = trainers.id AND fragments.ended_at IS NOT NULL), 0)"
        )
    op.create_index("ix_generations_published_at", "generations", ["published_at"])


def downgrade() -> None:
    op.drop_index("ix_generations_published_at", "generations")
    for column in _SUMS:
        op.drop_column("trainers", column)
    op.drop_table("harvests")
