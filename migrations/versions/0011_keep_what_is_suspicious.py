"""Keep with each version of a data set what is suspicious in its rows."""

from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    # Null: not checked yet. A statement of SQLite's own: copying the table would drop what
    # refers to it.
    op.execute("ALTER TABLE dataset_version ADD COLUMN findings JSON")


def downgrade() -> None:
    op.drop_column("dataset_version", "findings")
