"""Keep with each run what was estimated when it was submitted."""

from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    # A statement of SQLite's own: copying the table would drop what refers to it.
    op.execute("ALTER TABLE run ADD COLUMN estimate JSON NOT NULL DEFAULT '{}'")


def downgrade() -> None:
    op.drop_column("run", "estimate")
