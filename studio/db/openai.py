"""What OpenAI's interface says of files and jobs, and no other table holds."""

from sqlalchemy import JSON, Column
from sqlmodel import Field, SQLModel


class OpenAIFile(SQLModel, table=True):
    """Why a data set that was brought as a file cannot be learnt from."""

    __tablename__ = "openai_file"

    dataset_id: int = Field(primary_key=True, foreign_key="dataset.id", ondelete="CASCADE")
    problem: str


class OpenAIJob(SQLModel, table=True):
    """A run that was asked for as a fine-tuning job."""

    __tablename__ = "openai_job"

    run_id: int = Field(primary_key=True, foreign_key="run.id", ondelete="CASCADE")
    suffix: str = ""
    pairs: dict[str, str] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    """Its metadata."""
    training_id: int
    """The data set that is its training file; it may be gone by now, as may the next."""
    validation_id: int | None = None
    is_validating: bool = Field(default=False, index=True)
    """Whether its run waits for its files to be read."""
