"""Quotas of single users

Revision ID: 0020
Revises: 0019
"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "quotas",
        sa.Column("user_name", sa.String(63), primary_key=True),
        sa.Column("trainers", sa.Integer(), nullable=True),
        sa.Column("nodes", sa.Integer(), nullable=True),
        sa.Column("node_hours", sa.Double(), nullable=True),
        sa.Column("storage_gib", sa.Double(), nullable=True),
        sa.Column("weight", sa.Double(), nullable=True),
        sa.Column("by_name", sa.String(63), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("quotas")
