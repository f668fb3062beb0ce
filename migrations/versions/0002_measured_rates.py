"""How fast each trainer was measured to train at each number of nodes

Revision ID: 0002
Revises: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "measured_rates",
        sa.Column("trainer_id", sa.String(length=36), nullable=False),
        sa.Column("nodes", sa.Integer(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("samples", sa.Double(), nullable=False),
        sa.Column("explored_s", sa.Double(), nullable=False),
        sa.Column("recent", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["trainer_id"], ["trainers.id"]),
        sa.PrimaryKeyConstraint("trainer_id", "nodes"),
    )


def downgrade() -> None:
    op.drop_table("measured_rates")
