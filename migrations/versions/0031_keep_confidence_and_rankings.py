"""Keep how sure a model is of an answer, and how it expects the worse answer of a preference."""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"


def upgrade() -> None:
    with op.batch_alter_table("answer") as batch:
        batch.add_column(sa.Column("rejected_nll", sa.Float(), nullable=True))
        batch.add_column(sa.Column("confidence", sa.Float(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("answer") as batch:
        batch.drop_column("confidence")
        batch.drop_column("rejected_nll")
