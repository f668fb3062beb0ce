"""How many slots a trainer's fragments have is decided and remembered

Revision ID: 0038
Revises: 0037
"""

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("trainers", sa.Column("fragment_slots", sa.JSON(), nullable=False, server_default="{}"))


def downgrade() -> None:
    op.drop_column("trainers", "fragment_slots")
