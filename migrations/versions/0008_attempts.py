"""What ended an attempt, and which crashes of a fragment have been counted

Revision ID: 0008
Revises: 0007
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("trainers", sa.Column("crash", sa.JSON(), nullable=False, server_default="{}"))
    op.add_column("fragments", sa.Column("crashes", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    # Not as a batch: SQLite's would make the table anew, which its children's foreign keys forbid.
    op.drop_column("fragments", "crashes")
    op.drop_column("trainers", "crash")
