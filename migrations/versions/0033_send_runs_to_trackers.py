"""Send runs to trackers."""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"


def upgrade() -> None:
    op.create_table(
        "tracked_run",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("tracker", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("events_offset", sa.Integer(), nullable=False),
        sa.Column("is_closed", sa.Boolean(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("error", sa.String(), nullable=False),
        sa.Column("hint", sa.String(), nullable=False),
        sa.Column("due_at", sa.DateTime(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("run_id", "key"),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("tracked_run") as batch:
        batch.create_index("ix_tracked_run_run_id", ["run_id"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("tracked_run") as batch:
        batch.drop_index("ix_tracked_run_run_id")

    op.drop_table("tracked_run")
