"""Indexes for lists of trainers, which take the newest of many

Revision ID: 0024
Revises: 0023
"""

from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_index("ix_trainers_state", "trainers")
    op.create_index("ix_trainers_state", "trainers", ["state", "submitted_at", "id"])
    op.create_index("ix_trainers_user", "trainers", ["user_name", "submitted_at", "id"])


def downgrade() -> None:
    op.drop_index("ix_trainers_user", "trainers")
    op.drop_index("ix_trainers_state", "trainers")
    op.create_index("ix_trainers_state", "trainers", ["state"])
