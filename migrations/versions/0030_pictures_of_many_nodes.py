"""Indexes that hold all that pictures of many nodes show, and the fragments of a node

Revision ID: 0030
Revises: 0029
"""

from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_index("ix_fragments_ended", "fragments")
    op.create_index("ix_fragments_ended", "fragments", ["ended_at", "training_at", "node"])
    op.create_index("ix_fragments_node", "fragments", ["node", "ended_at"])
    op.drop_index("ix_node_intervals_state", "node_intervals")
    op.create_index("ix_node_intervals_state", "node_intervals", ["state", "end_at", "start_at", "node"])


def downgrade() -> None:
    op.drop_index("ix_node_intervals_state", "node_intervals")
    op.create_index("ix_node_intervals_state", "node_intervals", ["state", "end_at", "start_at"])
    op.drop_index("ix_fragments_node", "fragments")
    op.drop_index("ix_fragments_ended", "fragments")
    op.create_index("ix_fragments_ended", "fragments", ["ended_at"])
