"""What lists show of a run's numbers, summed up while they come; and what somebody keeps."""

from datetime import datetime

from sqlalchemy import JSON, Column, Index
from sqlmodel import Field, SQLModel

from studio.db.column_types import AUTOINCREMENT, UTCDateTime, now
from studio.db.owners import owner_column


class MetricSummary(SQLModel, table=True):
    """One metric of one run in a few numbers, each of which a list can be sorted by."""

    __tablename__ = "metric_summary"
    __table_args__ = tuple(
        Index(f"metric_summary_{name}", "key", name, "run_id")
        for name in ("last", "least", "greatest", "smoothed", "mean10", "mean100")
    )

    run_id: int = Field(foreign_key="run.id", primary_key=True, ondelete="CASCADE")
    key: str = Field(primary_key=True)
    count: int = 0
    """How many finite numbers there were."""
    broken: int = 0
    """How many were not finite."""
    step: int = 0
    """Of the newest number."""
    last: float | None = None
    """None where the newest number is not finite; `non_finite` then says which it is."""
    non_finite: str = ""
    least: float | None = None
    greatest: float | None = None
    smoothed: float | None = None
    """The exponential moving average at the end, corrected for its start."""
    mean10: float | None = None
    mean100: float | None = None
    curve: list[float] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    """Means of equally many numbers each, but for the last one.

    See `studio.services.metrics.metric_summaries`.
    """


class SavedView(SQLModel, table=True):
    """A list of runs as somebody wants to find it again."""

    __tablename__ = "saved_view"
    __table_args__ = AUTOINCREMENT

    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(unique=True)
    query: str
    """What stands in the address behind the question mark."""
    owner_id: int | None = owner_column()
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)


class SavedComparison(SQLModel, table=True):
    """Runs side by side as somebody saw them, kept with a name and a text."""

    __tablename__ = "comparison"
    __table_args__ = AUTOINCREMENT

    id: int | None = Field(default=None, primary_key=True)
    name: str
    text: str = ""
    query: str
    """What the address of the page said, all of it."""
    owner_id: int | None = owner_column()
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
    changed_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)


class Rating(SQLModel, table=True):
    """What a person thinks of an answer. It goes where the answer goes."""

    sample_id: int = Field(primary_key=True, foreign_key="sample.id", ondelete="CASCADE")
    score: int
    """From 1, of no use, to 5, as good as it can be."""
    rated_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
