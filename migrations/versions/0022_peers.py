"""Several processes of the service on one database

Revision ID: 0022
Revises: 0021
"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "posted_states",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("taken_at", sa.Double(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
    )
    op.add_column("lease", sa.Column("snapshot_at", sa.Double(), nullable=True))
    op.add_column("installation", sa.Column("database", sa.String(32), nullable=True))


def downgrade() -> None:
    op.drop_column("installation", "database")
    op.drop_column("lease", "snapshot_at")
    op.drop_table("posted_states")
