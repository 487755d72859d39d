"""Add endpoints: models that are served under a name of their own."""

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"


def upgrade() -> None:
    op.create_table(
        "endpoint",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("engine", sa.String(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("export_id", sa.Integer(), nullable=True),
        sa.Column("idle_minutes", sa.Integer(), nullable=True),
        sa.Column("is_wanted", sa.Boolean(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("note", sa.String(), nullable=False),
        sa.Column("error_message", sa.String(), nullable=False),
        sa.Column("error_hint", sa.String(), nullable=False),
        sa.Column("crashes", sa.Integer(), nullable=False),
        sa.Column("port", sa.Integer(), nullable=True),
        sa.Column("locked_key", sa.String(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("pid_started", sa.Float(), nullable=True),
        sa.Column("gpu", sa.Integer(), nullable=True),
        sa.Column("requests", sa.Integer(), nullable=False),
        sa.Column("requested_at", sa.DateTime(), nullable=True),
        sa.Column("last_used_at", sa.DateTime(), nullable=True),
        sa.Column("busy_until", sa.DateTime(), nullable=True),
        sa.Column("ready_at", sa.DateTime(), nullable=True),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.Column("owner_id", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["export_id"], ["export.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["owner_id"], ["account.id"]),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("endpoint") as batch:
        batch.create_index("ix_endpoint_export_id", ["export_id"], unique=False)
        batch.create_index("ix_endpoint_run_id", ["run_id"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("endpoint") as batch:
        batch.drop_index("ix_endpoint_run_id")
        batch.drop_index("ix_endpoint_export_id")

    op.drop_table("endpoint")
