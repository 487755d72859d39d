"""The table of sweeps. Facts about one of its runs are stored with the run."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Column
from sqlmodel import Field, SQLModel

from studio.db.column_types import AUTOINCREMENT, METRICS_ADAPTER, UTCDateTime, ValidatedJSON, now
from studio.db.owners import owner_column
from studio.db.states import SweepStatus, text_enum
from studio.methods import RECIPE_ADAPTER, AnyRecipe
from studio.recipe.search_space import SEARCH_SPACE_ADAPTER, SearchSpace


def _json_list() -> Any:  # noqa: ANN401 -- SQLModel's Field returns Any
    return Field(default_factory=list, sa_column=Column(JSON, nullable=False))


class Sweep(SQLModel, table=True):
    """A search for the best settings: many runs of one recipe with some settings varied."""

    __table_args__ = AUTOINCREMENT

    id: int | None = Field(default=None, primary_key=True)
    experiment_id: int = Field(foreign_key="experiment.id", index=True, ondelete="CASCADE")
    name: str
    recipe: AnyRecipe = Field(sa_column=Column(ValidatedJSON(RECIPE_ADAPTER), nullable=False))
    """The recipe of every run, except for the settings that vary."""
    space: SearchSpace = Field(
        sa_column=Column(ValidatedJSON(SEARCH_SPACE_ADAPTER), nullable=False)
    )
    strategy: str
    """grid, random or tpe: see `studio.services.sweeps.sweep_preview`."""
    count: int
    """The number of runs."""
    metric: str = "eval_loss"
    direction: str = "minimise"
    seed: int = 0
    """The seed for sampling settings."""
    is_pruning: bool = False
    """Whether a run that looks hopeless is stopped early."""
    parallel: int = 1
    """How many of its runs may be queued or training at once."""
    status: SweepStatus = Field(
        default=SweepStatus.RUNNING,
        sa_column=Column(text_enum(SweepStatus), nullable=False, index=True),
    )
    submitted: int = 0
    """How many runs it has queued. Counted, because deleted runs are not created again."""
    planned: list[dict[str, Any]] = _json_list()
    """The settings of each run by dotted names; empty if they depend on earlier results."""
    refused: list[dict[str, Any]] = _json_list()
    """Planned settings that cannot run on this machine."""
    importance: dict[str, float] = Field(
        default_factory=dict, sa_column=Column(ValidatedJSON(METRICS_ADAPTER), nullable=False)
    )
    """The importance of each setting; empty until enough runs have finished."""
    error: str = ""
    """Why the sweep failed."""
    owner_id: int | None = owner_column()
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
    finished_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
