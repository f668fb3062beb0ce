"""Trainers are found by their tags

Revision ID: 0036
Revises: 0035
"""

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "trainer_tags",
        sa.Column("trainer_id", sa.String(36), sa.ForeignKey("trainers.id"), primary_key=True),
        sa.Column("tag", sa.String(40), primary_key=True),
        sa.Column("submitted_at", sa.Double(), nullable=False),
    )
    op.create_index("ix_trainer_tags_newest", "trainer_tags", ["tag", "submitted_at", "trainer_id"])


def downgrade() -> None:
    op.drop_table("trainer_tags")
