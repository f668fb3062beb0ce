"""The audit log: who did what, from where; its rows cannot be changed, nor be deleted before 360 days

Revision ID: 0019
Revises: 0018
"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_KEPT_S = 360 * 24 * 3600
_REFUSAL = "the audit log is append-only"


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True
        ),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("actor", sa.String(63), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("token", sa.String(12), nullable=False),
        sa.Column("request", sa.String(64), nullable=False),
        sa.Column("address", sa.String(63), nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("subject", sa.String(255), nullable=False),
        sa.Column("owner", sa.String(63), nullable=True),
        sa.Column("refused", sa.Boolean(), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
    )
    op.create_index("ix_audit_at", "audit", ["at"])
    op.create_index("ix_audit_actor", "audit", ["actor", "id"])
    op.create_index("ix_audit_subject", "audit", ["subject", "id"])
    for statement in _TRIGGERS[op.get_bind().dialect.name]:
        op.execute(statement)


def downgrade() -> None:
    op.drop_table("audit")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION oakum_keep_audit()")


_TRIGGERS = {
    "sqlite": (
        f"CREATE TRIGGER audit_update BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END",
        "CREATE TRIGGER audit_delete BEFORE DELETE ON audit "
        f"WHEN OLD.at > CAST(strftime('%s', 'now') AS REAL) - {_KEPT_S} "
        f"BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END",
    ),
    "postgresql": (
        f"""
        CREATE FUNCTION oakum_keep_audit() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF TG_OP = 'DELETE' THEN
                IF OLD.at <= extract(epoch FROM now()) - {_KEPT_S} THEN
                    RETURN OLD;
                END IF;
            END IF;
            RAISE EXCEPTION '{_REFUSAL}';
        END $$
        """,
        "CREATE TRIGGER audit_change BEFORE UPDATE OR DELETE ON audit "
        "FOR EACH ROW EXECUTE FUNCTION oakum_keep_audit()",
        "CREATE TRIGGER audit_truncate BEFORE TRUNCATE ON audit "
        "FOR EACH STATEMENT EXECUTE FUNCTION oakum_keep_audit()",
    ),
}
