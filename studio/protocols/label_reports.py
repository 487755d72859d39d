"""How well a classifier gives each label, at each validation."""

from pydantic import BaseModel, ConfigDict

from studio.protocols.report_files import ReportFile, ValidationReport
from studio.schemas.field_docs import FieldDocs


class LabelScore(FieldDocs, BaseModel):
    """How well one label was given."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    label: str
    precision: float
    """The share of the texts given the label that have it; 0 if none was."""
    recall: float
    """The share of the texts with the label that were given it; 0 if there are none."""
    f1: float
    """The harmonic mean of precision and recall."""
    support: int
    """How many validation texts have the label."""
    given: int
    """How many validation texts were given the label."""


class Confusion(FieldDocs, BaseModel):
    """How many texts of one label were given another, or the right one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    true: str
    given: str
    count: int


class LabelReport(ValidationReport):
    """How well each label was given at one validation."""

    macro_f1: float
    threshold: float | None
    """The least probability of a label that is given, if texts have several; null if one each."""
    labels: list[LabelScore]
    confusions: list[Confusion]
    """Without those that never occurred; empty if texts have several labels."""

    @property
    def quality(self) -> float:
        return self.macro_f1


LABEL_REPORTS = ReportFile("label_reports.jsonl", LabelReport)
