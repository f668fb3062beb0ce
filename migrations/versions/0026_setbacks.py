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


def downgrade() -> None:
    op.drop_column("trainers", "setback")
