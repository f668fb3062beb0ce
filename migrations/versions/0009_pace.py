"""What trainers' steps cost, and when nothing was known of them

Revision ID: 0009
Revises: 0008
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("trainers", sa.Column("pace", sa.JSON(), nullable=False, server_default=sa.text("'{}'")))
    op.add_column("progress", sa.Column("after_gap", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    op.drop_column("progress", "after_gap")
    op.drop_column("trainers", "pace")
