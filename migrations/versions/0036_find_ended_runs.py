"""Find the runs that have ended since a time without reading all runs with their statuses."""

from alembic import op

revision = "0036"
down_revision = "0035"

COLUMNS = ("status", "finished_at", "study_id", "sweep_id", "archived_at", "deleted_at")


def upgrade() -> None:
    op.create_index("run_by_end", "run", COLUMNS)


def downgrade() -> None:
    op.drop_index("run_by_end", "run")
