"""Where a run's numbers fall on the range of each format, and what that means, in sentences."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from studio.protocols.events import (
    EventLog,
    MagnitudeHistogram,
    MagnitudesMeasured,
    Quantity,
    Resumed,
)
from studio.recipe.precision import FLOAT_FORMATS, FloatFormat

QUANTITIES: tuple[Quantity, ...] = get_args(Quantity)
_NEGLIGIBLE = 1e-4
"""Shares below this are not mentioned: samples cannot tell them from nothing."""
_JUDGED = tuple(FLOAT_FORMATS[name] for name in ("float32", "bfloat16", "float16"))
"""The formats that numbers are stored in. What float8 products read is scaled to fit first."""
_MARGIN = 2
"""Powers of two left free at both ends of an axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatRange:
    """The powers of two that a format holds: exactly from `normal` on, roughly from `lowest`."""

    title: str
    lowest: int
    normal: int
    highest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Magnitudes:
    """The first and the latest histograms of a run."""

    first: MagnitudesMeasured
    latest: MagnitudesMeasured
    findings: tuple[str, ...]

    def axis(self, *quantities: Quantity) -> tuple[int, int]:
        """Return the powers of two that an axis needs."""
        shown = [
            event.histograms[quantity]
            for event in (self.first, self.latest)
            for quantity in quantities
            if quantity in event.histograms
        ]
        low = min(histogram.lowest for histogram in shown)
        high = max(histogram.lowest + len(histogram.shares) for histogram in shown)
        edges = FLOAT_FORMATS["float16"]
        low = min(low, _power(edges.min_subnormal))
        return low - _MARGIN, max(high, _power(edges.max) + 1) + _MARGIN

    def tallest(self, *quantities: Quantity) -> float:
        """Return the largest share at one power of two."""
        return (
            max(
                max(event.histograms[quantity].shares, default=0)
                for event in (self.first, self.latest)
                for quantity in quantities
                if quantity in event.histograms
            )
            or 1
        )

    def ticks(self, low: int, high: int) -> list[int]:
        """Return five powers of two at equal distances, from one end of an axis to the other."""
        return [round(low + (high - low) * place / 4) for place in range(5)]

    def cells(self, low: int, high: int, *quantities: Quantity) -> list[list[float | None]]:
        """Return a row for each power of two from `low` to below `high`.

        After the power, each quantity has its share of numbers there now, and at first; None where
        it was not measured.
        """
        shown = [
            event.histograms.get(quantity)
            for quantity in quantities
            for event in (self.latest, self.first)
        ]
        return [
            [power, *(_share_at(histogram, power) for histogram in shown)]
            for power in range(low, high)
        ]

    def summary(self, quantity: Quantity) -> str:
        """Describe a histogram for readers who cannot see it."""
        histogram = self.latest.histograms[quantity]
        last = histogram.lowest + len(histogram.shares)
        return f"Your {quantity} are between 2^{histogram.lowest} and 2^{last}."


def _share_at(histogram: MagnitudeHistogram | None, power: int) -> float | None:
    if histogram is None:
        return None
    place = power - histogram.lowest
    return histogram.shares[place] if 0 <= place < len(histogram.shares) else 0.0


def read_magnitudes(log: EventLog) -> Magnitudes | None:
    """Return a run's histograms; None if none were measured.

    Steps after the checkpoint that a run resumed from were repeated, so the repetition counts.
    """
    by_step: dict[int, MagnitudesMeasured] = {}
    for event in log.find("magnitudes", "resumed"):
        if isinstance(event, Resumed):
            by_step = {step: kept for step, kept in by_step.items() if step <= event.step}
        elif isinstance(event, MagnitudesMeasured) and event.histograms:
            by_step[event.step] = event
    if not by_step:
        return None
    latest = by_step[max(by_step)]
    findings = tuple(list_findings(latest.histograms))
    return Magnitudes(first=by_step[min(by_step)], latest=latest, findings=findings)


def format_ranges() -> list[FormatRange]:
    return [
        FormatRange(
            title=form.title,
            lowest=_power(form.min_subnormal),
            normal=form.min_exponent,
            highest=_power(form.max),
        )
        for form in FLOAT_FORMATS.values()
    ]


def update_ranges() -> list[FormatRange]:
    """Return the relative updates that weights of each format keep: some, and all of them."""
    return [
        FormatRange(
            title=form.title, lowest=_lost_below(form), normal=_lost_below(form) + 1, highest=128
        )
        for name, form in FLOAT_FORMATS.items()
        if name != "tf32"
    ]


def list_findings(histograms: Mapping[Quantity, MagnitudeHistogram]) -> Iterator[str]:
    """Say what formats could not store, worst first within each quantity."""
    for quantity in QUANTITIES:
        histogram = histograms.get(quantity)
        if histogram is None:
            continue
        if histogram.nonfinite:
            yield f"{_percent(histogram.nonfinite)} of your {quantity} are NaN or infinite."
        yield from (
            _list_lost_updates(histogram)
            if quantity == "updates"
            else _list_range_losses(quantity, histogram)
        )


def share_below(histogram: MagnitudeHistogram, power: int) -> float:
    """Return the share of nonzero numbers below a power of two."""
    return sum(histogram.shares[: max(0, power - histogram.lowest)])


def share_from(histogram: MagnitudeHistogram, power: int) -> float:
    """Return the share of finite numbers from a power of two on."""
    return sum(histogram.shares[max(0, power - histogram.lowest) :])


def _list_range_losses(quantity: Quantity, histogram: MagnitudeHistogram) -> Iterator[str]:
    too_small = {
        form.title: share_below(histogram, _power(form.min_subnormal) - 1) for form in _JUDGED
    }
    too_large = {form.title: share_from(histogram, _power(form.max) + 1) for form in _JUDGED}
    for title, share in _notable(too_large):
        yield f"{_percent(share)} of your {quantity} are too large for {title}."
    for title, share in _notable(too_small):
        yield f"{_percent(share)} of your {quantity} are too small for {title} and become 0."


def _list_lost_updates(histogram: MagnitudeHistogram) -> Iterator[str]:
    lost = {form.title: share_below(histogram, _lost_below(form)) for form in _JUDGED}
    for title, share in _notable(lost):
        yield f"At least {_percent(share)} of your updates are lost if weights are in {title}."


def _notable(shares: Mapping[str, float]) -> Sequence[tuple[str, float]]:
    notable = [(title, share) for title, share in shares.items() if share >= _NEGLIGIBLE]
    return sorted(notable, key=lambda item: -item[1])


def _lost_below(form: FloatFormat) -> int:
    """Return the power of two below which a relative update is always rounded away.

    The gap to the next number is at least half of `eps`, relative to the weight.
    """
    return _power(form.eps) - 2


def _power(value: float) -> int:
    return math.frexp(value)[1] - 1


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"  # noqa: PLR2004 -- two digits
