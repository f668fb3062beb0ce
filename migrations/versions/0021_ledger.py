"""A ledger: what each user's trainers had and cost, by month

Revision ID: 0021
Revises: 0020
"""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "ledger",
        sa.Column("month", sa.String(7), primary_key=True),
        sa.Column("user_name", sa.String(63), primary_key=True),
        sa.Column("lent_node_s", sa.Double(), nullable=False),
        sa.Column("warm_up_node_s", sa.Double(), nullable=False),
        sa.Column("grow_node_s", sa.Double(), nullable=False),
        sa.Column("shrink_node_s", sa.Double(), nullable=False),
        sa.Column("loss_node_s", sa.Double(), nullable=False),
        sa.Column("repeated_node_s", sa.Double(), nullable=False),
        sa.Column("foreground_delay_s", sa.Double(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("ledger")
