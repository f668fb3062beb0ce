"""Whose trainers they are and how long they have waited; objectives that are expressions

Revision ID: 0003
Revises: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_COLUMNS = ("user_name", "guard_waited_s", "guard_served_s", "waiting_since")


def upgrade() -> None:
    op.add_column("trainers", sa.Column("user_name", sa.String(length=63), nullable=True))
    for name in ("guard_waited_s", "guard_served_s"):
        op.add_column("trainers", sa.Column(name, sa.Double(), nullable=False, server_default="0"))
    op.add_column("trainers", sa.Column("waiting_since", sa.Double(), nullable=True))
    with op.batch_alter_table("plans") as plans:
        plans.alter_column("objective", existing_type=sa.String(length=32), type_=sa.Text())


def downgrade() -> None:
    with op.batch_alter_table("plans") as plans:
        plans.alter_column(
            "objective",
            existing_type=sa.Text(),
            type_=sa.String(length=32),
            postgresql_using="substr(objective, 1, 32)",
        )
    # Not as a batch: SQLite's would make the table anew, which its children's foreign keys forbid.
    for name in reversed(_COLUMNS):
        op.drop_column("trainers", name)
