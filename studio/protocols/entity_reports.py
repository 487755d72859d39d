"""How well a tagger finds the entities of each label, at each validation."""

from pydantic import BaseModel, ConfigDict

from studio.protocols.report_files import ReportFile, ValidationReport
from studio.schemas.field_docs import FieldDocs


class EntityScore(FieldDocs, BaseModel):
    """How well the entities of one label were found."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    label: str
    precision: float
    """The share of the found entities that are right: start, end and label. 0 if none was found."""
    recall: float
    """The share of the entities in the validation data that were found. 0 if there are none."""
    f1: float
    """The harmonic mean of precision and recall."""
    support: int
    """How many entities with the label the validation data has."""
    given: int
    """How many entities were given the label."""


class EntityReport(ValidationReport):
    """How well entities were found at one validation."""

    f1: float
    """The F1 score of all entities together."""
    labels: list[EntityScore]

    @property
    def quality(self) -> float:
        return self.f1


ENTITY_REPORTS = ReportFile("entity_reports.jsonl", EntityReport)
