"""Numerical health of a run: each signal with its meaning and what to do."""

from dataclasses import dataclass

from studio.db.tables import Run
from studio.methods import METRICS
from studio.web.i18n import formatting


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """One signal of a run's numerical health."""

    name: str
    value: str
    meaning: str


def list_signals(run: Run) -> list[Signal]:
    """Return the newest value of each signal that the run has reported."""
    return [
        Signal(
            name=formatting.metric_title(name),
            value=formatting.metric_value(run.metrics[name], name),
            meaning=spec.meaning,
        )
        for name, spec in METRICS.items()
        if spec.meaning and name in run.metrics
    ]
