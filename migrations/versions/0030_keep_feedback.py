"""Keep feedback: what people say about answers, as rows to train on."""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"


def upgrade() -> None:
    op.create_table(
        "feedback",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("row", sa.JSON(), nullable=False),
        sa.Column("said_in", sa.String(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=True),
        sa.Column("evaluation_id", sa.Integer(), nullable=True),
        sa.Column("position", sa.Integer(), nullable=True),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("other_model", sa.String(), nullable=False),
        sa.Column("temperature", sa.Float(), nullable=True),
        sa.Column("seed", sa.Integer(), nullable=True),
        sa.Column("said_by", sa.String(), nullable=False),
        sa.Column("owner_id", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["evaluation_id"], ["evaluation.id"], ondelete="SET NULL"),
        sa.ForeignKeyConstraint(["owner_id"], ["account.id"]),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], ondelete="SET NULL"),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("feedback") as batch:
        for column in ("evaluation_id", "key", "kind", "run_id"):
            batch.create_index(f"ix_feedback_{column}", [column], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("feedback") as batch:
        for column in ("run_id", "kind", "key", "evaluation_id"):
            batch.drop_index(f"ix_feedback_{column}")

    op.drop_table("feedback")
