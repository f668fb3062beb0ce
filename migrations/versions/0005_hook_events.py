"""What Slurm's hooks have told

Revision ID: 0005
Revises: 0004
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "hook_events",
        sa.Column("cluster", sa.String(length=63), nullable=False),
        sa.Column("job_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("restart", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("first_at", sa.Double(), nullable=False),
        sa.Column("newest_at", sa.Double(), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.Column("start_at", sa.Double(), nullable=True),
        sa.Column("end_at", sa.Double(), nullable=True),
        sa.Column("uid", sa.BigInteger(), nullable=False),
        sa.Column("partition", sa.String(length=255), nullable=False),
        sa.Column("nodes", sa.Text(), nullable=False),
        sa.Column("heard", sa.JSON(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "job_id", "restart", "kind"),
    )
    op.create_index("ix_hook_events_received_at", "hook_events", ["received_at"])


def downgrade() -> None:
    op.drop_index("ix_hook_events_received_at", "hook_events")
    op.drop_table("hook_events")
