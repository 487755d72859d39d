"""Index what lists look through, what charts draw, and what the census counts."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.drop_index("run_by_status", "run")
    op.create_index("run_by_status", "run", ["status", "id", "name"])
    op.create_index("run_took", "run", ["finished_at", "claimed_at", "tokens"])
    op.create_index("metric_drawn", "metric", ["run_id", "key", "step", "value"])
    broken = sa.text("value IS NULL")
    op.create_index("metric_broken", "metric", ["run_id", "key", "step"], sqlite_where=broken)
    op.create_index("ix_happening_kind", "happening", ["kind"])


def downgrade() -> None:
    op.drop_index("ix_happening_kind", "happening")
    op.drop_index("metric_broken", "metric")
    op.drop_index("metric_drawn", "metric")
    op.drop_index("run_took", "run")
    op.drop_index("run_by_status", "run")
    op.create_index("run_by_status", "run", ["status", "id"])
