"""Look runs up by words and tags, and in the order lists show them, in indexes alone."""

from alembic import op

revision = "0017"
down_revision = "0016"

_LOOKED_THROUGH = ["name", "notes", "archived_at", "deleted_at"]


def upgrade() -> None:
    op.drop_index("run_by_status", "run")
    op.create_index("run_by_status", "run", ["status", "id", "archived_at", "deleted_at"])
    op.create_index("run_in_words", "run", ["id", *_LOOKED_THROUGH])
    op.create_index("run_by_tags", "run", ["tags", "deleted_at"])


def downgrade() -> None:
    op.drop_index("run_by_tags", "run")
    op.drop_index("run_in_words", "run")
    op.drop_index("run_by_status", "run")
    op.create_index("run_by_status", "run", ["status", "id", *_LOOKED_THROUGH])
