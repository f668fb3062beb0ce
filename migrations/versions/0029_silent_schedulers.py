"""Every process tells of a scheduler that does not answer, and the ledger of fragments' ends

Revision ID: 0029
Revises: 0026
"""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("lease", sa.Column("silent_since", sa.Double(), nullable=True))
    op.add_column("lease", sa.Column("silent_tried", sa.Text(), nullable=False, server_default=""))
    op.add_column("ledger", sa.Column("ends", sa.JSON(), nullable=False, server_default="{}"))


def downgrade() -> None:
    op.drop_column("ledger", "ends")
    op.drop_column("lease", "silent_tried")
    op.drop_column("lease", "silent_since")
