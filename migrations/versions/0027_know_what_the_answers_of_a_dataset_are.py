"""Keep what the answers of a dataset are: labels, numbers or free text."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    op.add_column("dataset_version", sa.Column("answers", sa.JSON(none_as_null=True)))


def downgrade() -> None:
    op.drop_column("dataset_version", "answers")
