"""Colour, dash and label of each line in a chart, for runs and for groups of runs."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlmodel import Session

from studio.db.tables import Run
from studio.services.compare import seed_noise
from studio.services.compare.run_labels import label_runs
from studio.services.compare.seed_noise import CurveGroup
from studio.services.metrics import metrics
from studio.services.metrics.metrics import Curves, Series
from studio.web.rendering.colours import DASHES, run_hue


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveStyle:
    """How the curves of a run or a group are drawn."""

    id: int
    label: str
    hue: int
    """Derived from the run's id, not from its position in a list: a run keeps its colour."""
    dash: int
    """Distinguishes runs of the same colour."""
    n: int = 1
    """Number of runs that are averaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveAxis:
    """The x axis of curves, and the setting by which runs are grouped into lines."""

    x: str = "step"
    group: str = ""
    part: tuple[float, float] = metrics.FULL_RANGE
    """Range of the x axis."""


@dataclass(frozen=True, slots=True)
class StyledCurve:
    """The curve of one metric, with its style."""

    style: CurveStyle
    series: Series


@dataclass(frozen=True, slots=True)
class CurveSet:
    """Curves that share an x axis."""

    curves: Curves
    styles: dict[int, CurveStyle]
    series: dict[str, dict[int, Series]]
    """By metric, then by the line's id."""
    groups: Sequence[CurveGroup] = ()

    def line_of(self, run_id: int) -> int:
        """Return the id of the line that a run is drawn by: its own, or that of its group."""
        return next((min(group.runs) for group in self.groups if run_id in group.runs), run_id)

    def visible_curves(self, key: str, lines: Mapping[int, CurveStyle]) -> list[StyledCurve]:
        """Return the lines that have values of a metric."""
        series = self.series[key]
        return [
            StyledCurve(line, series[number]) for number, line in lines.items() if number in series
        ]


def run_styles(chosen: Sequence[Run]) -> dict[int, CurveStyle]:
    return _assign_styles((number, label, 1) for number, label in label_runs(chosen).items())


def group_styles(groups: Sequence[CurveGroup]) -> dict[int, CurveStyle]:
    """Return a style for each group. Its id is its lowest run id, so it keeps its colour."""
    return _assign_styles((min(group.runs), group.label, len(group.runs)) for group in groups)


def _assign_styles(entries: Iterable[tuple[int, str, int]]) -> dict[int, CurveStyle]:
    hue_counts: Counter[int] = Counter()
    lines: dict[int, CurveStyle] = {}
    for number, label, n in sorted(entries):
        hue = run_hue(number)
        lines[number] = CurveStyle(
            id=number, label=label, hue=hue, dash=hue_counts[hue] % len(DASHES), n=n
        )
        hue_counts[hue] += 1
    return lines


def load_curves(
    db: Session, chosen: Sequence[Run], keys: Sequence[str], along: CurveAxis, buckets: int = 1000
) -> CurveSet:
    """Load metrics along one axis, as a line for each run or for each group."""
    ids = [run.id or 0 for run in chosen]
    curves = metrics.load_curves(db, ids, keys, x=along.x, buckets=buckets, part=along.part)
    if not along.group:
        series: dict[str, dict[int, Series]] = {key: {} for key in keys}
        for (run_id, key), run_series in curves.series.items():
            series[key][run_id] = run_series
        return CurveSet(curves, run_styles(chosen), series)
    groups = seed_noise.group_runs(chosen, along.group)
    numbers = [min(group.runs) for group in groups]
    merged = seed_noise.merge_curves(curves, groups, keys)
    by_key = {key: dict(zip(numbers, lines, strict=True)) for key, lines in merged.items()}
    return CurveSet(curves, group_styles(groups), by_key, groups)


def without_hidden(
    lines: Mapping[int, CurveStyle], without: Collection[int]
) -> dict[int, CurveStyle]:
    """Return the lines that are not hidden."""
    return {number: line for number, line in lines.items() if number not in without}
