"""Trainers can be paused by their users

Revision ID: 0015
Revises: 0014
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("trainers", sa.Column("pause", sa.JSON(), nullable=False, server_default="{}"))


def downgrade() -> None:
    op.drop_column("trainers", "pause")
