"""Which installation of the service the database belongs to

Revision ID: 0012
Revises: 0011
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "installation",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("key", sa.String(16), nullable=False),
        sa.Column("data_dir", sa.Text(), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("installation")
