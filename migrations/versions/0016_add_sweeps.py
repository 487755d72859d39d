"""Add sweeps: one recipe with some of its knobs varied, over many runs."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.create_table(
        "sweep",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("experiment_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("recipe", sa.JSON(), nullable=False),
        sa.Column("space", sa.JSON(), nullable=False),
        sa.Column("strategy", sa.String(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("metric", sa.String(), nullable=False),
        sa.Column("direction", sa.String(), nullable=False),
        sa.Column("seed", sa.Integer(), nullable=False),
        sa.Column("is_pruning", sa.Boolean(), nullable=False),
        sa.Column("parallel", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("submitted", sa.Integer(), nullable=False),
        sa.Column("planned", sa.JSON(), nullable=False),
        sa.Column("refused", sa.JSON(), nullable=False),
        sa.Column("importance", sa.JSON(), nullable=False),
        sa.Column("error", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.Column("finished_at", sa.DateTime(), nullable=True),
        sa.ForeignKeyConstraint(["experiment_id"], ["experiment.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_sweep_experiment_id", "sweep", ["experiment_id"])
    op.create_index("ix_sweep_status", "sweep", ["status"])
    # In statements of SQLite's own: copying the table, as alembic would, drops the old one, and
    # with it the rows that refer to it.
    op.execute("ALTER TABLE run ADD COLUMN sweep_id INTEGER REFERENCES sweep (id)")
    op.execute("ALTER TABLE run ADD COLUMN trial INTEGER")
    op.execute("ALTER TABLE run ADD COLUMN is_pruned BOOLEAN NOT NULL DEFAULT 0")
    op.create_index("run_of_sweep", "run", ["sweep_id", "trial"], unique=True)


def downgrade() -> None:
    op.drop_index("run_of_sweep", "run")
    for column in ("is_pruned", "trial", "sweep_id"):
        op.drop_column("run", column)
    op.drop_index("ix_sweep_status", "sweep")
    op.drop_index("ix_sweep_experiment_id", "sweep")
    op.drop_table("sweep")
