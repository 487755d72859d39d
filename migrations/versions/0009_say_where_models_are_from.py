"""Say of models where they are from, and whether their own code may run."""

from alembic import op

revision = "0009"
down_revision = "0008"

_COLUMNS = {
    "repo": "VARCHAR NOT NULL DEFAULT ''",
    "revision": "VARCHAR NOT NULL DEFAULT ''",
    "consent": "JSON",
}
"""Added in statements of SQLite's own: copying the table would drop what refers to it."""


def upgrade() -> None:
    for name, kind in _COLUMNS.items():
        op.execute(f"ALTER TABLE model ADD COLUMN {name} {kind}")


def downgrade() -> None:
    for name in _COLUMNS:
        op.execute(f"ALTER TABLE model DROP COLUMN {name}")
