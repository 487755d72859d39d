"""Say of each experiment which run or experiment its recipe was made from."""

from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    # A statement of SQLite's own: copying the table would drop what refers to it.
    op.execute("ALTER TABLE experiment ADD COLUMN parent VARCHAR NOT NULL DEFAULT ''")


def downgrade() -> None:
    op.drop_column("experiment", "parent")
