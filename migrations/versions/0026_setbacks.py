"""Launches that come to nothing are remembered, so that the next ones wait

Revision ID: 0026
Revises: 0024
"""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("trainers", sa.Column("setback", sa.JSON(), nullable=False, server_default="{}"))
    op.add_column("lease", sa.Column("closed", sa.Text(), nullable=False, server_default=""))
    op.create_table(
        "node_setbacks",
        sa.Column("node", sa.String(255), primary_key=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("times", sa.Integer(), nullable=False),
        sa.Column("until_at", sa.Double(), nullable=False),
        sa.Column("what", sa.Text(), nullable=False),
        sa.Column("trainer_id", sa.String(36), nullable=False),
        sa.Column("is_own", sa.Boolean(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("node_setbacks")
    op.drop_column("lease", "closed")
    op.drop_column("trainers", "setback")
