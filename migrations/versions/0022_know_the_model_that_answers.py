"""Know which model is loaded to answer, and for how long, and have it leave when that is asked."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    op.create_table(
        "loaded",
        sa.Column("worker", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("since", sa.DateTime(), nullable=False),
        sa.Column("leaves_at", sa.DateTime(), nullable=True),
        sa.Column("is_leaving", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("worker"),
    )


def downgrade() -> None:
    op.drop_table("loaded")
