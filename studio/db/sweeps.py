"""The table of sweeps. What belongs to one of its runs stands with the run."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Column
from sqlmodel import Field, SQLModel

from studio.db.column_types import AUTOINCREMENT, METRICS_ADAPTER, UTCDateTime, ValidatedJSON, now
from studio.db.owners import owner_column
from studio.db.states import SweepStatus, text_enum
from studio.methods import RECIPE_ADAPTER, AnyRecipe
from studio.recipe.search_space import SEARCH_SPACE_ADAPTER, SearchSpace


def _json_list() -> Any:  # noqa: ANN401 -- what SQLModel's Field gives has no nameable type
    return Field(default_factory=list, sa_column=Column(JSON, nullable=False))


class Sweep(SQLModel, table=True):
    """One recipe with some of its knobs varied: many runs, to find the settings that are best."""

    __table_args__ = AUTOINCREMENT

    id: int | None = Field(default=None, primary_key=True)
    experiment_id: int = Field(foreign_key="experiment.id", index=True, ondelete="CASCADE")
    name: str
    recipe: AnyRecipe = Field(sa_column=Column(ValidatedJSON(RECIPE_ADAPTER), nullable=False))
    """What holds of every run, but for the knobs that vary."""
    space: SearchSpace = Field(
        sa_column=Column(ValidatedJSON(SEARCH_SPACE_ADAPTER), nullable=False)
    )
    strategy: str
    """grid, random or tpe: see `studio.services.sweeps.sweep_preview`."""
    count: int
    """How many runs it comes to."""
    metric: str = "eval_loss"
    direction: str = "minimise"
    seed: int = 0
    """What is drawn follows from it."""
    is_pruning: bool = False
    """Whether a run that looks hopeless is stopped early."""
    parallel: int = 1
    """How many of its runs may wait or train at once."""
    status: SweepStatus = Field(
        default=SweepStatus.RUNNING,
        sa_column=Column(text_enum(SweepStatus), nullable=False, index=True),
    )
    submitted: int = 0
    """How many runs it has queued. Counted, for a run may be deleted and is not made again."""
    planned: list[dict[str, Any]] = _json_list()
    """What each run will try, by dotted names; empty where it follows from those before."""
    refused: list[dict[str, Any]] = _json_list()
    """What was to be tried and cannot run here."""
    importance: dict[str, float] = Field(
        default_factory=dict, sa_column=Column(ValidatedJSON(METRICS_ADAPTER), nullable=False)
    )
    """How much each knob decides; empty until enough runs have ended."""
    error: str = ""
    """Why it could not go on."""
    owner_id: int | None = owner_column()
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
    finished_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
