"""Record why the studio chose a precision, and what hardware a worker trains on."""

from alembic import op

revision = "0023"
down_revision = "0022"

_COLUMNS = {
    "experiment": "precision_reason VARCHAR NOT NULL DEFAULT ''",
    "run": "precision_reason VARCHAR NOT NULL DEFAULT ''",
    "worker": "hardware JSON",
}
"""Added in statements of SQLite's own: copying a table would drop what refers to it."""


def upgrade() -> None:
    for table, column in _COLUMNS.items():
        op.execute(f"ALTER TABLE {table} ADD COLUMN {column}")


def downgrade() -> None:
    for table, column in _COLUMNS.items():
        op.drop_column(table, column.split()[0])
