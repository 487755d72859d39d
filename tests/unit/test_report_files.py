"""Which of the reports of a run are about the model it ends with."""

from pathlib import Path

import pytest

from studio.protocols.report_files import ReportFile, ValidationReport, of_model
from studio.protocols.run_dir import RunDir


class Quality(ValidationReport):
    """A report that is its quality alone."""

    value: float

    @property
    def quality(self) -> float:
        """Return what was given."""
        return self.value


def reports(*values: float) -> list[Quality]:
    """Return the reports of steps 0, 1, 2 and so on."""
    return [Quality(step=step, texts=1, value=value) for step, value in enumerate(values)]


@pytest.mark.parametrize(
    ("values", "best", "last"),
    [
        ((0.1, 0.5, 0.3), 1, 2),
        ((0.9, 0.2, 0.4, 0.1), 2, 3),
        ((0.9,), 0, 0),
    ],
    ids=["better", "worse than untrained", "only untrained"],
)
def test_report_is_that_of_the_weights_that_are_kept(
    values: tuple[float, ...], best: int, last: int
) -> None:
    steps = [of_model(reports(*values), keeps_best=keeps) for keeps in (True, False)]

    assert [report.step for report in steps if report] == [best, last]


def test_run_without_validation_has_no_report() -> None:
    assert of_model([], keeps_best=True) is None


def test_repeated_validation_replaces_the_earlier_one(tmp_path: Path) -> None:
    """And a line that a kill has cut off is left out."""
    run, file = RunDir(tmp_path), ReportFile("found.jsonl", Quality)
    for report in (*reports(0.1, 0.2, 0.3), *reports(0.1, 0.7)[1:]):
        file.append(run, report)
    with (tmp_path / "found.jsonl").open("a", encoding="utf-8") as lines:
        lines.write('{"step": 3, "te')

    assert [(one.step, one.value) for one in file.read(run)] == [(0, 0.1), (1, 0.7), (2, 0.3)]
