"""Tokens have a label and an end, and tell when they were last used

Revision ID: 0018
Revises: 0017
"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tokens", sa.Column("label", sa.String(63), nullable=False, server_default=""))
    op.add_column("tokens", sa.Column("expires_at", sa.Double(), nullable=True))
    op.add_column("tokens", sa.Column("used_at", sa.Double(), nullable=True))


def downgrade() -> None:
    for column in ("used_at", "expires_at", "label"):
        op.drop_column("tokens", column)
