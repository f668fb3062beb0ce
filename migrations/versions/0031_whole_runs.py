"""Old chart points are put together instead of deleted

Revision ID: 0031
Revises: 0030
"""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

_LOSSES = ("loss_mean", "loss_min", "loss_max")


def upgrade() -> None:
    op.add_column("progress", sa.Column("reports", sa.Integer(), nullable=False, server_default="1"))
    for name in _LOSSES:
        op.add_column("progress", sa.Column(name, sa.Double(), nullable=True))


def downgrade() -> None:
    for name in ("reports", *_LOSSES):
        op.drop_column("progress", name)
