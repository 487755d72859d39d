"""Give data sets versions, and let runs note which one they learn from."""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_ADDED = (
    "source VARCHAR NOT NULL DEFAULT 'upload'",
    "status VARCHAR(20) NOT NULL DEFAULT 'ready'",
    "version INTEGER DEFAULT 1",
    "detected JSON NOT NULL DEFAULT '{}'",
)
_MOVED = (
    "shape VARCHAR NOT NULL DEFAULT ''",
    "mapping JSON NOT NULL DEFAULT '{}'",
    "train_rows INTEGER NOT NULL DEFAULT 0",
    "validation_rows INTEGER NOT NULL DEFAULT 0",
    "problems JSON NOT NULL DEFAULT '[]'",
)
"""Columns in statements of SQLite's own: copying a table would drop what refers to it."""

_USED = """
    UPDATE run SET dataset_version_id = (
        SELECT dataset_version.id FROM dataset_version
        JOIN dataset ON dataset.id = dataset_version.dataset_id
        WHERE json_extract(run.recipe, '$.dataset') IN (dataset.name, CAST(dataset.id AS TEXT))
        AND dataset.created_at <= run.created_at
        ORDER BY json_extract(run.recipe, '$.dataset') = dataset.name DESC LIMIT 1
    )
"""
"""A run knew its data set by name, else by id; one made after the run is another of that name."""


def upgrade() -> None:
    op.create_table(
        "dataset_version",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("dataset_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("mapping", sa.JSON(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("train_rows", sa.Integer(), nullable=False),
        sa.Column("validation_rows", sa.Integer(), nullable=False),
        sa.Column("problems", sa.JSON(), nullable=False),
        sa.Column("removed", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["dataset_id"], ["dataset.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("dataset_id", "number"),
        sqlite_autoincrement=True,
    )
    _make_first_versions()
    for column in _ADDED:
        op.execute(f"ALTER TABLE dataset ADD COLUMN {column}")
    for column in _MOVED:
        op.drop_column("dataset", column.split()[0])
    op.execute(
        "ALTER TABLE run ADD COLUMN dataset_version_id INTEGER REFERENCES dataset_version (id)"
    )
    op.create_index("ix_run_dataset_version_id", "run", ["dataset_version_id"])
    op.execute(_USED)


def downgrade() -> None:
    op.drop_index("ix_run_dataset_version_id", "run")
    op.drop_column("run", "dataset_version_id")
    for column in _MOVED:
        op.execute(f"ALTER TABLE dataset ADD COLUMN {column}")
    _keep_present_versions()
    for column in _ADDED:
        op.drop_column("dataset", column.split()[0])
    op.drop_table("dataset_version")


def _make_first_versions() -> None:
    """Make what a data set was its first version; it is hashed when its files are moved."""
    connection = op.get_bind()
    for row in connection.execute(sa.text("SELECT * FROM dataset")).mappings().all():
        roles = {role: [column] for role, column in json.loads(row["mapping"]).items()}
        mapping = {"shape": row["shape"], "roles": roles}
        if row["validation_rows"]:
            mapping["split"] = {"kind": "dataset"}
        _write(
            "INSERT INTO dataset_version (dataset_id, number, kind, mapping, sha256, train_rows,"
            " validation_rows, problems, removed, created_at)"
            " VALUES (:id, 1, 'conversation', :mapping, '', :train_rows, :validation_rows,"
            " :problems, '{}', :created_at)",
            dict(row) | {"mapping": json.dumps(mapping)},
        )


def _keep_present_versions() -> None:
    connection = op.get_bind()
    found = connection.execute(
        sa.text(
            "SELECT dataset_version.* FROM dataset_version JOIN dataset"
            " ON dataset.id = dataset_id AND dataset.version = dataset_version.number"
        )
    )
    for row in found.mappings().all():
        mapping: dict[str, Any] = json.loads(row["mapping"])
        roles = {role: columns[0] for role, columns in mapping.get("roles", {}).items() if columns}
        _write(
            "UPDATE dataset SET shape = :shape, mapping = :mapping, train_rows = :train_rows,"
            " validation_rows = :validation_rows, problems = :problems WHERE id = :dataset_id",
            dict(row) | {"shape": mapping.get("shape", ""), "mapping": json.dumps(roles)},
        )


def _write(statement: str, values: dict[str, Any]) -> None:
    op.get_bind().execute(sa.text(statement), values)
