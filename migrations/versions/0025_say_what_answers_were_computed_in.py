"""Keep the number format that each answer was computed in."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"


TABLES = ("sample", "loaded")


def upgrade() -> None:
    for table in TABLES:
        with op.batch_alter_table(table) as batch:
            batch.add_column(
                sa.Column("computed_in", sa.String(), nullable=False, server_default="")
            )


def downgrade() -> None:
    for table in TABLES:
        with op.batch_alter_table(table) as batch:
            batch.drop_column("computed_in")
