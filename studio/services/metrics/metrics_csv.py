"""All metrics of a run as CSV: one line per step, one column per metric."""

import csv
import io
from itertools import groupby

from sqlmodel import Session, col, select

from studio.db.tables import Metric, Run

_POSITION = ("step", "epoch", "tokens", "seconds")


def to_csv(db: Session, run: Run) -> str:
    """Return the metrics as text; values that are not finite are spelled out: nan, inf, -inf."""
    keys = select(Metric.key).where(Metric.run_id == run.id).distinct()
    rows = db.exec(
        select(Metric).where(Metric.run_id == run.id).order_by(col(Metric.step), col(Metric.id))
    )
    text = io.StringIO()
    table = csv.DictWriter(text, [*_POSITION, *sorted(db.exec(keys))], lineterminator="\r\n")
    table.writeheader()
    for _step, metrics in groupby(rows, lambda metric: metric.step):
        line: dict[str, object] = {}
        for metric in metrics:
            line |= {name: getattr(metric, name) for name in _POSITION}
            line[metric.key] = metric.non_finite if metric.value is None else metric.value
        table.writerow(line)
    return text.getvalue()
