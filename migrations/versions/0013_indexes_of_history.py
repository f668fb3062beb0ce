"""Indexes that keep what has ended out of each turn of the controller

Revision ID: 0013
Revises: 0012
"""

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_fragments_trainer", "fragments", ["trainer_id", "ended_at"])
    op.create_index("ix_fragments_ended", "fragments", ["ended_at"])
    op.drop_index("ix_fragments_trainer_id", "fragments")
    op.create_index("ix_foreground_starts_started_at", "foreground_starts", ["started_at"])


def downgrade() -> None:
    op.drop_index("ix_foreground_starts_started_at", "foreground_starts")
    op.create_index("ix_fragments_trainer_id", "fragments", ["trainer_id"])
    op.drop_index("ix_fragments_ended", "fragments")
    op.drop_index("ix_fragments_trainer", "fragments")
