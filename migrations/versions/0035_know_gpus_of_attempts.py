"""Know which GPU each attempt had and how it failed, and which GPUs are in quarantine."""

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"


def upgrade() -> None:
    op.create_table(
        "quarantined_gpu",
        sa.Column("gpu", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("since", sa.DateTime(), nullable=False),
        sa.Column("released_at", sa.DateTime(), nullable=True),
        sa.PrimaryKeyConstraint("gpu"),
    )
    with op.batch_alter_table("attempt") as batch:
        batch.add_column(sa.Column("gpu", sa.String(), server_default="", nullable=False))
        batch.add_column(sa.Column("error_code", sa.String(), server_default="", nullable=False))
        batch.create_index("ix_attempt_gpu", ["gpu"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("attempt") as batch:
        batch.drop_index("ix_attempt_gpu")
        batch.drop_column("error_code")
        batch.drop_column("gpu")

    op.drop_table("quarantined_gpu")
