"""Run migrations on the connection that `studio.db.migrate` hands over.

A new database on a server gets the newest tables at once, and no migration.
"""

from typing import Literal

from alembic import context
from sqlalchemy import types

from studio.db import (
    accounts,
    benchmarks,
    endpoints,
    evaluations,
    feedback,
    outbox,
    summaries,
    tables,
    tasks,
    trackers,
)

TABLES = (
    accounts.Account,
    benchmarks.Benchmark,
    endpoints.Endpoint,
    evaluations.Evaluation,
    feedback.Feedback,
    outbox.Delivery,
    summaries.SavedView,
    tables.Run,
    tasks.Task,
    trackers.TrackedRun,
)
"""One of each file: all share what knows every table, once their files are loaded."""


def plain(kind: str, item: object, _context: object) -> str | Literal[False]:
    """Write our column types as the database knows them: a migration must outlive our classes."""
    if kind != "type" or not isinstance(item, types.TypeDecorator):
        return False
    return f"sa.{type(item.impl_instance).__name__}()"


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=TABLES[0].metadata,
    render_as_batch=True,
    render_item=plain,
)
if context.config.attributes.get("baseline"):
    TABLES[0].metadata.create_all(context.config.attributes["connection"])
context.run_migrations()
