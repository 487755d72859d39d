"""What a run finds out at each validation, besides its metrics: written by it, shown by the web.

The reports are lines of JSON in the run's folder. A validation that a resumed run repeats replaces
the earlier one of the same step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from studio.protocols.run_dir import RunDir
from studio.schemas.field_docs import FieldDocs


class ValidationReport(FieldDocs, BaseModel):
    """What one validation found out."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int
    texts: int
    """How many validation texts there are."""

    @property
    def quality(self) -> float:
        """The value of the objective, of which more is better."""
        raise NotImplementedError


Report = TypeVar("Report", bound=ValidationReport)


@dataclass(frozen=True, slots=True)
class ReportFile(Generic[Report]):
    """The file of the reports of one kind, in the folder of a run."""

    name: str
    kind: type[Report]

    def append(self, run: RunDir, report: Report) -> None:
        """Add the report of a validation; that of step 0 replaces all earlier ones."""
        with (run.root / self.name).open("a" if report.step else "w", encoding="utf-8") as lines:
            lines.write(report.model_dump_json() + "\n")

    def read(self, run: RunDir) -> list[Report]:
        """Return the reports of a run by step; a line that is not complete is left out."""
        try:
            lines = (run.root / self.name).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        reports: dict[int, Report] = {}
        for line in lines:
            try:
                report = self.kind.model_validate_json(line)
            except ValidationError:
                continue
            reports[report.step] = report
        return [reports[step] for step in sorted(reports)]


def of_model(reports: Sequence[Report], *, keeps_best: bool) -> Report | None:
    """Return the report of the weights that a run ends with: the best ones, or the last.

    The untrained model is never the best: a run that got worse keeps its least bad weights.
    """
    if not reports:
        return None
    trained = [one for one in reports if one.step] or reports
    return max(trained, key=lambda one: one.quality) if keeps_best else trained[-1]
