"""Keep the load of machines and of runs."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    op.create_table(
        "hardware_sample",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("worker", sa.String(), nullable=False),
        sa.Column("usage", sa.JSON(), nullable=False),
        sa.Column("at", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("hardware_sample") as batch:
        batch.create_index("ix_hardware_sample_at", ["at"], unique=False)
    op.create_table(
        "run_hardware_sample",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("usage", sa.JSON(), nullable=False),
        sa.Column("at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("run_hardware_sample") as batch:
        batch.create_index("run_hardware_sample_order", ["run_id", "at"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("run_hardware_sample") as batch:
        batch.drop_index("run_hardware_sample_order")

    op.drop_table("run_hardware_sample")
    with op.batch_alter_table("hardware_sample") as batch:
        batch.drop_index("ix_hardware_sample_at")

    op.drop_table("hardware_sample")
