"""How much of trainers' nodes was in use, and where idle node-time went that trained nothing

Revision ID: 0037
Revises: 0036
"""

import time

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None

_SHARES = ("cpu", "own_cpu", "memory", "own_memory", "gpu", "gpu_memory")
_CAUSES = ("late", "start_up", "stalled")


def upgrade() -> None:
    op.create_table(
        "node_uses",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("trainer_id", sa.String(36), sa.ForeignKey("trainers.id"), nullable=False),
        sa.Column("node", sa.String(255), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("after_gap", sa.Boolean(), nullable=False),
        sa.Column("reports", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.Double(), nullable=True) for name in _SHARES),
        sa.Column("cores", sa.Double(), nullable=True),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("gpus", sa.Integer(), nullable=True),
        sa.Column("gpu_memory_bytes", sa.BigInteger(), nullable=True),
    )
    op.create_index("ix_node_uses_trainer", "node_uses", ["trainer_id", "node", "at"])
    hours = op.create_table(
        "lost_hours",
        sa.Column("hour", sa.Integer(), primary_key=True, autoincrement=False),
        *(sa.Column(f"{name}_node_s", sa.Double(), nullable=False) for name in _CAUSES),
    )
    # From this hour on the sums are complete.
    nothing = {f"{name}_node_s": 0.0 for name in _CAUSES}
    op.bulk_insert(hours, [{"hour": int(time.time()) // 3600, **nothing}])


def downgrade() -> None:
    op.drop_table("lost_hours")
    op.drop_table("node_uses")
