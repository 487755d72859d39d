"""Add studies: one recipe in several precisions and with several seeds."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "study",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("experiment_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("modes", sa.JSON(), nullable=False),
        sa.Column("seeds", sa.JSON(), nullable=False),
        sa.Column("max_steps", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["experiment_id"], ["experiment.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_study_experiment_id", "study", ["experiment_id"])
    # In one statement of SQLite's own: copying the table, as alembic would, drops the old one, and
    # with it the rows that refer to it.
    op.execute("ALTER TABLE run ADD COLUMN study_id INTEGER REFERENCES study (id)")
    op.create_index("ix_run_study_id", "run", ["study_id"])


def downgrade() -> None:
    op.drop_index("ix_run_study_id", "run")
    op.drop_column("run", "study_id")
    op.drop_index("ix_study_experiment_id", "study")
    op.drop_table("study")
