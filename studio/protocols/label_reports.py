"""How well a classifier gave each label, at each validation: written by the run, shown by the web.

The reports are lines of JSON in the run's folder. A validation that a resumed run repeats replaces
the earlier one of the same step.
"""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, ValidationError

from studio.protocols.run_dir import RunDir
from studio.schemas.field_docs import FieldDocs

_FILE = "label_reports.jsonl"


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


class LabelReport(FieldDocs, BaseModel):
    """How well each label was given at one validation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int
    texts: int
    macro_f1: float
    threshold: float | None
    """The least probability of a label that is given, if texts have several; null if one each."""
    labels: list[LabelScore]
    confusions: list[Confusion]
    """Without those that never occurred; empty if texts have several labels."""


def append(run: RunDir, report: LabelReport) -> None:
    """Add the report of a validation; that of step 0 replaces all earlier ones."""
    with (run.root / _FILE).open("a" if report.step else "w", encoding="utf-8") as lines:
        lines.write(report.model_dump_json() + "\n")


def read(run: RunDir) -> list[LabelReport]:
    """Return the reports of a run by step; a line that is not complete is left out."""
    try:
        lines = (run.root / _FILE).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    reports: dict[int, LabelReport] = {}
    for line in lines:
        try:
            report = LabelReport.model_validate_json(line)
        except ValidationError:
            continue
        reports[report.step] = report
    return [reports[step] for step in sorted(reports)]


def of_model(reports: Sequence[LabelReport], *, keeps_best: bool) -> LabelReport | None:
    """Return the report of the weights that a run ends with: the best ones, or the last."""
    if not reports:
        return None
    return max(reports, key=lambda one: one.macro_f1) if keeps_best else reports[-1]
