"""How well a classifier gives each label, and which labels it takes for which."""

from dataclasses import dataclass

from studio.db.tables import Run
from studio.protocols.label_reports import LABEL_REPORTS, Confusion, LabelReport
from studio.protocols.report_files import of_model
from studio.protocols.run_dir import RunDir

MAX_GRID_LABELS = 20
"""With more labels, the most frequent mistakes are listed instead of a grid."""
MAX_MISTAKES = 20
LEVELS = 5
"""Shades of a cell that is not empty."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Texts of one label that were given one label."""

    count: int
    level: int
    """How large a share of the texts of its true label they are: from 0 for none to `LEVELS`."""
    is_right: bool


@dataclass(frozen=True, slots=True)
class LabelResults:
    report: LabelReport
    grid: list[tuple[str, list[Cell]]]
    """By true label, a cell for each given label; empty if there are many labels, or several per
    text."""
    mistakes: list[Confusion]
    """The most frequent ones first."""


def load(run: Run, folder: RunDir) -> LabelResults | None:
    """Return the results of the weights that the run has; None if it gives no labels."""
    reports = LABEL_REPORTS.read(folder) if run.recipe.outputs == "label" else []
    report = of_model(reports, keeps_best=run.recipe.keeps_best_model)
    return None if report is None else summarise(report)


def summarise(report: LabelReport) -> LabelResults:
    """Return the grid and the mistakes of a report."""
    mistakes = [one for one in report.confusions if one.true != one.given]
    mistakes.sort(key=lambda one: -one.count)
    has_grid = bool(report.confusions) and len(report.labels) <= MAX_GRID_LABELS
    return LabelResults(report, _grid(report) if has_grid else [], mistakes[:MAX_MISTAKES])


def _grid(report: LabelReport) -> list[tuple[str, list[Cell]]]:
    counts = {(one.true, one.given): one.count for one in report.confusions}
    names = [score.label for score in report.labels]
    return [
        (
            row.label,
            [
                _cell(counts.get((row.label, name), 0), row.support, is_right=name == row.label)
                for name in names
            ],
        )
        for row in report.labels
    ]


def _cell(count: int, support: int, *, is_right: bool) -> Cell:
    # Any text at all is visible.
    level = max(1, round(LEVELS * count / support)) if count else 0
    return Cell(count, level, is_right)
