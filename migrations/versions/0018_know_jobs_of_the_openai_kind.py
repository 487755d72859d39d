"""Keep what OpenAI's interface says of files and jobs, and nothing else here holds."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    op.create_table(
        "openai_file",
        sa.Column("dataset_id", sa.Integer(), nullable=False),
        sa.Column("problem", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["dataset_id"], ["dataset.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("dataset_id"),
    )
    op.create_table(
        "openai_job",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("suffix", sa.String(), nullable=False),
        sa.Column("pairs", sa.JSON(), nullable=False),
        sa.Column("training_id", sa.Integer(), nullable=False),
        sa.Column("validation_id", sa.Integer(), nullable=True),
        sa.Column("is_validating", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id"),
    )
    op.create_index("ix_openai_job_is_validating", "openai_job", ["is_validating"])


def downgrade() -> None:
    op.drop_table("openai_job")
    op.drop_table("openai_file")
