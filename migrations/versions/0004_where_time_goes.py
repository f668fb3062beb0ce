"""Where trainers' time goes, how long their rescales take, and what their fragments have warned of

Revision ID: 0004
Revises: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_TRAINERS = sa.table(
    "trainers",
    sa.column("id", sa.String),
    sa.column("progress", sa.JSON),
    sa.column("startup_s", sa.Double),
    sa.column("durations", sa.JSON),
    sa.column("checkpoint_step", sa.Integer),
)


def upgrade() -> None:
    for name in ("durations", "account"):
        op.add_column("trainers", sa.Column(name, sa.JSON(), nullable=False, server_default="{}"))
    op.add_column("trainers", sa.Column("checkpoint_step", sa.Integer(), nullable=True))
    op.add_column("trainers", sa.Column("checkpoint_at", sa.Double(), nullable=True))
    op.add_column("fragments", sa.Column("warnings", sa.JSON(), nullable=False, server_default="[]"))
    for trainer, progress, startup_s in _rows("progress", "startup_s"):
        known = {} if startup_s is None else {"start_up": [startup_s]}
        # A step that no integer holds was never finished: what an agent said was not looked into before.
        step = (progress or {}).get("checkpoint_step")
        step = step if step is not None and 0 <= step < 2**31 else None
        _set(trainer, durations=known, checkpoint_step=step)
    op.drop_column("trainers", "startup_s")


def downgrade() -> None:
    op.add_column("trainers", sa.Column("startup_s", sa.Double(), nullable=True))
    for trainer, durations in _rows("durations"):
        if known := (durations or {}).get("start_up"):
            _set(trainer, startup_s=known[-1])
    op.drop_column("fragments", "warnings")
    # Not as a batch: SQLite's would make the table anew, which its children's foreign keys forbid.
    for name in ("checkpoint_at", "checkpoint_step", "account", "durations"):
        op.drop_column("trainers", name)


def _rows(*columns: str) -> list[sa.Row]:
    chosen = (_TRAINERS.c[name] for name in ("id", *columns))
    return list(op.get_bind().execute(sa.select(*chosen)))


def _set(trainer: str, **values: object) -> None:
    op.get_bind().execute(_TRAINERS.update().where(_TRAINERS.c.id == trainer).values(**values))
