"""Gaps of a study's precisions to the reference by step, and the seed noise there."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from studio.services.metrics.metrics import Series
from studio.services.studies.study_statistics import MIN_SEEDS, REFERENCE

CurvesByMode = Mapping[tuple[str, int], Series]
"""A metric by precision and seed, all on one x axis."""


def compute_gaps(lines: CurvesByMode) -> dict[str, Series]:
    """Return for each precision the mean, smallest and largest gap over its seeds.

    The reference is zero, with a band of one standard deviation of its own seeds.
    """
    modes = dict.fromkeys(mode for mode, _seed in lines if mode != REFERENCE)
    gaps = {mode: _mode_gap(lines, mode) for mode in modes}
    reference = [line for (mode, _seed), line in lines.items() if mode == REFERENCE]
    return {REFERENCE: _noise_band(reference)} | gaps if reference else {}


def _mode_gap(lines: CurvesByMode, mode: str) -> Series:
    own = {seed: line for (name, seed), line in lines.items() if name == mode}
    pairs = [
        (line.mean, lines[REFERENCE, seed].mean)
        for seed, line in own.items()
        if (REFERENCE, seed) in lines
    ]
    columns = zip(*(_differences(*pair) for pair in pairs), strict=True)
    finite = [[gap for gap in column if gap is not None] for column in columns]
    return Series(
        mean=[fmean(column) if column else None for column in finite],
        min=[min(column, default=None) for column in finite],
        max=[max(column, default=None) for column in finite],
        non_finite=sorted({place for line in own.values() for place in line.non_finite}),
    )


def _noise_band(reference: Sequence[Series]) -> Series:
    columns = zip(*(line.mean for line in reference), strict=True)
    finite = [[value for value in column if value is not None] for column in columns]
    spreads = [stdev(column) if len(column) >= MIN_SEEDS else None for column in finite]
    return Series(
        mean=[0.0 if column else None for column in finite],
        min=[None if spread is None else -spread for spread in spreads],
        max=spreads,
        non_finite=sorted({place for line in reference for place in line.non_finite}),
    )


def _differences(
    mine: Sequence[float | None], theirs: Sequence[float | None]
) -> list[float | None]:
    return [
        a - b if a is not None and b is not None and math.isfinite(a - b) else None
        for a, b in zip(mine, theirs, strict=True)
    ]
