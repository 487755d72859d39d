"""How the curves of runs, and of groups of them, are drawn: colour, dash and name of each line."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlmodel import Session

from studio.db.tables import Run
from studio.services.compare import curve_groups
from studio.services.compare.curve_groups import CurveGroup
from studio.services.compare.run_labels import label_runs
from studio.services.metrics import metrics
from studio.services.metrics.metrics import Curves, Series

HUES, DASHES = 8, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveStyle:
    """How a run's curves are drawn."""

    id: int
    label: str
    hue: int
    """Bound to the run's number, never to its place in a list: a run keeps its colour."""
    dash: int
    """Tells apart runs of one colour."""
    n: int = 1
    """How many runs it is the mean of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveAxis:
    """What curves are drawn along, and what makes one line of several runs."""

    x: str = "step"
    group: str = ""
    part: tuple[float, float] = metrics.FULL_RANGE
    """From where to where."""


@dataclass(frozen=True, slots=True)
class StyledCurve:
    """A line and one metric of it."""

    style: CurveStyle
    series: Series


@dataclass(frozen=True, slots=True)
class CurveSet:
    """Curves laid over each other."""

    curves: Curves
    styles: dict[int, CurveStyle]
    series: dict[str, dict[int, Series]]
    """By metric, then by the number of the line."""

    def visible_curves(self, key: str, lines: Mapping[int, CurveStyle]) -> list[StyledCurve]:
        """Return the lines that have something to draw of a metric."""
        found = self.series[key]
        return [
            StyledCurve(line, found[number]) for number, line in lines.items() if number in found
        ]


def run_styles(chosen: Sequence[Run]) -> dict[int, CurveStyle]:
    return _assign_styles((number, label, 1) for number, label in label_runs(chosen).items())


def group_styles(groups: Sequence[CurveGroup]) -> dict[int, CurveStyle]:
    """Return a line for each group. Its first run's number is its own, and it keeps its colour."""
    return _assign_styles((min(group.runs), group.label, len(group.runs)) for group in groups)


def _assign_styles(named: Iterable[tuple[int, str, int]]) -> dict[int, CurveStyle]:
    seen: Counter[int] = Counter()
    lines: dict[int, CurveStyle] = {}
    for number, label, n in sorted(named):
        hue = number % HUES
        lines[number] = CurveStyle(id=number, label=label, hue=hue, dash=seen[hue] % DASHES, n=n)
        seen[hue] += 1
    return lines


def load_curves(
    db: Session, chosen: Sequence[Run], keys: Sequence[str], along: CurveAxis, buckets: int = 1000
) -> CurveSet:
    """Read metrics of runs along one axis, each run as a line, or each group of them."""
    ids = [run.id or 0 for run in chosen]
    found = metrics.load_curves(db, ids, keys, x=along.x, buckets=buckets, part=along.part)
    if not along.group:
        series: dict[str, dict[int, Series]] = {key: {} for key in keys}
        for (run_id, key), one in found.series.items():
            series[key][run_id] = one
        return CurveSet(found, run_styles(chosen), series)
    made = curve_groups.group_runs(chosen, along.group)
    numbers = [min(group.runs) for group in made]
    gathered = curve_groups.merge_curves(found, made, keys)
    by_key = {key: dict(zip(numbers, lines, strict=True)) for key, lines in gathered.items()}
    return CurveSet(found, group_styles(made), by_key)


def without_hidden(
    lines: Mapping[int, CurveStyle], without: Collection[int]
) -> dict[int, CurveStyle]:
    """Return the lines that are left."""
    return {number: line for number, line in lines.items() if number not in without}
