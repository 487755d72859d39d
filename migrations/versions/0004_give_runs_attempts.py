"""Give runs attempts that can be paused, resumed, held and moved; keep receipts."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_COLUMNS = (
    "priority INTEGER NOT NULL DEFAULT 0",
    "rank INTEGER",
    "is_held BOOLEAN NOT NULL DEFAULT 0",
    "slots INTEGER NOT NULL DEFAULT 1",
    "asked VARCHAR(20)",
    "resumes BOOLEAN NOT NULL DEFAULT 0",
    "lease_until DATETIME",
    "handle VARCHAR NOT NULL DEFAULT ''",
    "checkpoint_step INTEGER",
    "resumed_step INTEGER NOT NULL DEFAULT 0",
)
"""Added in statements of SQLite's own: copying the table would drop what refers to it."""


def upgrade() -> None:
    for column in _COLUMNS:
        op.execute(f"ALTER TABLE run ADD COLUMN {column}")
    # On which boot it was started is not known: such a process is looked for.
    op.execute("UPDATE run SET handle = pid || '@' || pid_started || '@' WHERE pid IS NOT NULL")
    op.drop_column("run", "pid")
    op.drop_column("run", "pid_started")
    op.create_table(
        "attempt",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("worker", sa.String(), nullable=False),
        sa.Column("from_step", sa.Integer(), nullable=False),
        sa.Column("began_at", sa.DateTime(), nullable=False),
        sa.Column("ended_at", sa.DateTime(), nullable=True),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("run_id", "number"),
    )
    op.create_index("ix_attempt_run_id", "attempt", ["run_id"])
    op.create_table(
        "receipt",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"]),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_index("ix_receipt_run_id", "receipt", ["run_id"])


def downgrade() -> None:
    for name in ("receipt", "attempt"):
        op.drop_index(f"ix_{name}_run_id", name)
        op.drop_table(name)
    op.execute("ALTER TABLE run ADD COLUMN pid INTEGER")
    op.execute("ALTER TABLE run ADD COLUMN pid_started FLOAT")
    for column in _COLUMNS:
        op.drop_column("run", column.split()[0])
