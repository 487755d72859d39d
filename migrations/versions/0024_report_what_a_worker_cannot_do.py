"""Report what a worker cannot do at present, and how often its steps have failed."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    op.add_column("worker", sa.Column("failing", sa.JSON(), server_default="[]", nullable=False))
    op.add_column("worker", sa.Column("failures", sa.Integer(), server_default="0", nullable=False))


def downgrade() -> None:
    op.drop_column("worker", "failures")
    op.drop_column("worker", "failing")
