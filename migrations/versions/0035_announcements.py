"""What the scheduler expects to take nodes

Revision ID: 0035
Revises: 0034
"""

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "announcements",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("body", sa.JSON(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("announcements")
