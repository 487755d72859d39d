"""The tables of benchmarks: how lm-eval scored which model, kept for good."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Column
from sqlmodel import Field, SQLModel

from studio.db.column_types import AUTOINCREMENT, UTCDateTime, now


class ScoreSet(SQLModel, table=True):
    """The scores of one model on a suite or rows; benchmarks of the same of both share it."""

    __tablename__ = "score_set"
    __table_args__ = AUTOINCREMENT

    id: int | None = Field(default=None, primary_key=True)
    key: str = Field(unique=True)
    """A checksum of all that decides the scores: weights, template, rows, limits, versions."""
    model: str
    """The name of the model for display: a base model, or `run 12`."""
    made_by: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    """What the key is computed from."""
    scores: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    """By metric, as in `protocols.benchmarks.MetricScores`; empty until it is finished."""
    signature: str = ""
    computed_in: str = ""
    """As in `protocols.benchmarks.BenchmarkResult`; empty until it is finished."""
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
    finished_at: datetime | None = Field(default=None, sa_type=UTCDateTime)


class Benchmark(SQLModel, table=True):
    """A comparison of a run's model with its base model by lm-eval."""

    __table_args__ = AUTOINCREMENT

    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(foreign_key="run.id", index=True, ondelete="CASCADE")
    suite: str
    """The name of a public suite; empty for the rows of a dataset."""
    dataset: str
    """The name of the dataset; empty for a suite."""
    title: str
    """The suite, or the dataset and version, for display: `pets, version 2`."""
    rows: int
    """The number of rows that were asked for."""
    base_id: int = Field(foreign_key="score_set.id", index=True)
    tuned_id: int = Field(foreign_key="score_set.id", index=True)
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
