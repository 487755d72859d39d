"""How near a model comes to the numbers that it learns, at each validation."""

from pydantic import BaseModel, ConfigDict

from studio.protocols.report_files import ReportFile, ValidationReport
from studio.schemas.field_docs import FieldDocs


class TargetScore(FieldDocs, BaseModel):
    """How near a model comes to one of its numbers, in the units of the data."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: str
    rmse: float
    """The root of the mean squared error: large errors count more."""
    mae: float
    """The mean absolute error."""
    r2: float
    """The share of the variance that the model explains; 0 for always giving the mean."""
    spearman: float
    """The correlation of the ranks: 1 if the order of the texts is right."""
    mean: float
    """Of the true numbers."""
    deviation: float
    """The standard deviation of the true numbers."""


class NumberReport(ValidationReport):
    """How near a model comes to each of its numbers at one validation."""

    targets: list[TargetScore]

    @property
    def quality(self) -> float:
        return sum(target.r2 for target in self.targets) / max(len(self.targets), 1)


NUMBER_REPORTS = ReportFile("number_reports.jsonl", NumberReport)
