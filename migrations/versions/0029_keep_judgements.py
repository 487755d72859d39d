"""Keep judgements: which of two models' answers a judge or a person calls better."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"


def upgrade() -> None:
    op.create_table(
        "judgement",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("evaluation_id", sa.Integer(), nullable=False),
        sa.Column("judge", sa.String(), nullable=False),
        sa.Column("title", sa.String(), nullable=False),
        sa.Column("pairs", sa.Integer(), nullable=False),
        sa.Column("owner_id", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.Column("finished_at", sa.DateTime(), nullable=True),
        sa.ForeignKeyConstraint(["evaluation_id"], ["evaluation.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["owner_id"], ["account.id"]),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("judgement") as batch:
        batch.create_index("ix_judgement_evaluation_id", ["evaluation_id"], unique=False)
    op.create_table(
        "judged_answers",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("judgement_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("base_first", sa.String(), nullable=False),
        sa.Column("tuned_first", sa.String(), nullable=False),
        sa.Column("base_first_reply", sa.String(), nullable=False),
        sa.Column("tuned_first_reply", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["judgement_id"], ["judgement.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("judgement_id", "position"),
    )


def downgrade() -> None:
    op.drop_table("judged_answers")
    op.drop_table("judgement")
