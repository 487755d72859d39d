"""Give runs notes, tags, an archive and a trash; sum up their metrics; keep views of the list."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

_COLUMNS = {
    "notes": "VARCHAR NOT NULL DEFAULT ''",
    "tags": "JSON NOT NULL DEFAULT '[]'",
    "archived_at": "DATETIME",
    "deleted_at": "DATETIME",
}
"""Added in statements of SQLite's own: copying the table would drop what refers to it."""

_SUMS = ("last", "least", "greatest", "smoothed", "mean10", "mean100")


def upgrade() -> None:
    for name, kind in _COLUMNS.items():
        op.execute(f"ALTER TABLE run ADD COLUMN {name} {kind}")
    op.drop_index("run_by_status", "run")
    looked_through = ["status", "id", "name", "notes", "archived_at", "deleted_at"]
    op.create_index("run_by_status", "run", looked_through)
    # Filled when the studio opens its home: see `studio.services.metrics.metric_summaries`.
    op.create_table(
        "metric_summary",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("broken", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("last", sa.Float(), nullable=True),
        sa.Column("non_finite", sa.String(), nullable=False),
        sa.Column("least", sa.Float(), nullable=True),
        sa.Column("greatest", sa.Float(), nullable=True),
        sa.Column("smoothed", sa.Float(), nullable=True),
        sa.Column("mean10", sa.Float(), nullable=True),
        sa.Column("mean100", sa.Float(), nullable=True),
        sa.Column("curve", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "key"),
    )
    for name in _SUMS:
        op.create_index(f"metric_summary_{name}", "metric_summary", ["key", name, "run_id"])
    op.create_table(
        "saved_view",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("query", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
        sqlite_autoincrement=True,
    )


def downgrade() -> None:
    op.drop_table("saved_view")
    op.drop_table("metric_summary")
    op.drop_index("run_by_status", "run")
    op.create_index("run_by_status", "run", ["status", "id", "name"])
    for name in reversed(_COLUMNS):
        op.drop_column("run", name)
