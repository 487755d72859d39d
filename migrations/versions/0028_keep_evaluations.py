"""Keep evaluations: what models answered to rows that they were not trained on."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    op.create_table(
        "answer_set",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("made_by", sa.JSON(), nullable=False),
        sa.Column("computed_in", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.Column("finished_at", sa.DateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("key"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "answer",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("answer_set_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("prompt", sa.String(), nullable=False),
        sa.Column("reference", sa.String(), nullable=False),
        sa.Column("answer", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("nll", sa.Float(), nullable=True),
        sa.Column("nll_tokens", sa.Integer(), nullable=False),
        sa.Column("overlap", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["answer_set_id"], ["answer_set.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("answer_set_id", "position"),
    )
    op.create_table(
        "evaluation",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("dataset", sa.String(), nullable=False),
        sa.Column("is_held_out", sa.Boolean(), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("base_id", sa.Integer(), nullable=False),
        sa.Column("tuned_id", sa.Integer(), nullable=False),
        sa.Column("owner_id", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["base_id"], ["answer_set.id"]),
        sa.ForeignKeyConstraint(["owner_id"], ["account.id"]),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["tuned_id"], ["answer_set.id"]),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("evaluation") as batch:
        for column in ("base_id", "run_id", "tuned_id"):
            batch.create_index(f"ix_evaluation_{column}", [column], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("evaluation") as batch:
        for column in ("tuned_id", "run_id", "base_id"):
            batch.drop_index(f"ix_evaluation_{column}")

    op.drop_table("evaluation")
    op.drop_table("answer")
    op.drop_table("answer_set")
