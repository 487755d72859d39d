"""Facts about files and jobs that only the OpenAI-compatible API needs."""

from sqlalchemy import JSON, Column
from sqlmodel import Field, SQLModel


class OpenAIFile(SQLModel, table=True):
    """Why a dataset uploaded as a file cannot be used for training."""

    __tablename__ = "openai_file"

    dataset_id: int = Field(primary_key=True, foreign_key="dataset.id", ondelete="CASCADE")
    problem: str


class OpenAIJob(SQLModel, table=True):
    """A run created as a fine-tuning job."""

    __tablename__ = "openai_job"

    run_id: int = Field(primary_key=True, foreign_key="run.id", ondelete="CASCADE")
    suffix: str = ""
    pairs: dict[str, str] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    """The metadata of the job."""
    training_id: int
    """The dataset of the training file; it and `validation_id` may have been deleted."""
    validation_id: int | None = None
    is_validating: bool = Field(default=False, index=True)
    """Whether the run waits until its files are processed."""
