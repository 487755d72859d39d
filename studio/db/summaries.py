"""Metric summaries for lists of runs; saved views, saved comparisons and ratings."""

from datetime import datetime

from sqlalchemy import JSON, Column, Index
from sqlmodel import Field, SQLModel

from studio.db.column_types import AUTOINCREMENT, UTCDateTime, now
from studio.db.owners import owner_column


class MetricSummary(SQLModel, table=True):
    """Aggregates of one metric of one run, which lists can sort by."""

    __tablename__ = "metric_summary"
    __table_args__ = tuple(
        Index(f"metric_summary_{name}", "key", name, "run_id")
        for name in ("last", "least", "greatest", "smoothed", "mean10", "mean100")
    )

    run_id: int = Field(foreign_key="run.id", primary_key=True, ondelete="CASCADE")
    key: str = Field(primary_key=True)
    count: int = 0
    """The number of finite values."""
    broken: int = 0
    """The number of non-finite values."""
    step: int = 0
    """The step of the newest value."""
    last: float | None = None
    """The newest value; None if it is not finite: see `non_finite`."""
    non_finite: str = ""
    least: float | None = None
    greatest: float | None = None
    smoothed: float | None = None
    """The exponential moving average at the end, with bias correction."""
    mean10: float | None = None
    mean100: float | None = None
    curve: list[float] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    """Means over equally many values each, except the last.

    See `studio.services.metrics.metric_summaries`.
    """


class SavedView(SQLModel, table=True):
    """A saved query and layout of the run table."""

    __tablename__ = "saved_view"
    __table_args__ = AUTOINCREMENT

    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(unique=True)
    query: str
    """The query string of the URL."""
    owner_id: int | None = owner_column()
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)


class SavedComparison(SQLModel, table=True):
    """A saved comparison of runs, with a name and a text."""

    __tablename__ = "comparison"
    __table_args__ = AUTOINCREMENT

    id: int | None = Field(default=None, primary_key=True)
    name: str
    text: str = ""
    query: str
    """The full query string of the page."""
    owner_id: int | None = owner_column()
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
    changed_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)


class Rating(SQLModel, table=True):
    """A user's rating of a sample answer, deleted together with the answer."""

    sample_id: int = Field(primary_key=True, foreign_key="sample.id", ondelete="CASCADE")
    score: int
    """From 1 (useless) to 5 (perfect)."""
    rated_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
