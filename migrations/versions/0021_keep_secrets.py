"""Keep secrets that are given on a page, and who somebody is for a service that signs them in."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    op.create_table(
        "secret",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("locked", sa.String(), nullable=False),
        sa.Column("set_by", sa.String(), nullable=False),
        sa.Column("set_at", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.execute("ALTER TABLE account ADD COLUMN subject VARCHAR")
    op.create_index("ix_account_subject", "account", ["subject"], unique=True)


def downgrade() -> None:
    op.drop_index("ix_account_subject", "account")
    op.execute("ALTER TABLE account DROP COLUMN subject")
    op.drop_table("secret")
