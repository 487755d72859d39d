"""Findings on magnitudes: shares computed from histograms, per format."""

from pathlib import Path

import pytest

from studio.protocols.events import (
    EventLog,
    MagnitudeHistogram,
    MagnitudesMeasured,
    MetricsLogged,
    Quantity,
    Resumed,
)
from studio.services.precision import magnitudes


def spread(*powers: int) -> MagnitudeHistogram:
    """Return a histogram with equal shares at some powers of two."""
    low, high = min(powers), max(powers)
    shares = [(power in powers) / len(powers) for power in range(low, high + 1)]
    return MagnitudeHistogram(zero=0, nonfinite=0, lowest=low, shares=shares)


def findings(quantity: Quantity, *powers: int) -> list[str]:
    return list(magnitudes.list_findings({quantity: spread(*powers)}))


def event(step: int, power: int = 0) -> MagnitudesMeasured:
    return MagnitudesMeasured(step=step, histograms={"weights": spread(power)})


def test_numbers_every_format_holds_need_no_words() -> None:
    assert findings("weights", -9, 0, 8) == []


def test_small_gradients_are_counted_per_format() -> None:
    assert findings("gradients", -26, -25, -24, -3) == [
        "25 % of your gradients are too small for float16 and become 0.",
    ]


def test_large_activations_are_counted_per_format() -> None:
    assert findings("activations", 0, 16) == [
        "50 % of your activations are too large for float16.",
    ]


def test_updates_are_held_to_gap_of_weights() -> None:
    # bfloat16: the gap is at least 2^-8 of the weight, half of it 2^-9.
    assert "At least 50 % of your updates are lost if weights are in bfloat16." in findings(
        "updates", -10, -9
    )
    assert not any("bfloat16" in text for text in findings("updates", -9))


def test_nonfinite_numbers_are_named() -> None:
    broken = MagnitudeHistogram(zero=0, nonfinite=0.5, lowest=0, shares=[0.5])

    assert list(magnitudes.list_findings({"gradients": broken})) == [
        "50 % of your gradients are NaN or infinite."
    ]


def test_repeated_steps_replace_what_they_repeat(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    for entry in (
        event(1),
        MetricsLogged(step=1, epoch=0, tokens=1, seconds=1, metrics={"loss": 1}),
        event(21, power=5),
        Resumed(step=10, attempt=2),
        event(11, power=7),
    ):
        log.append(entry)

    measured = magnitudes.read_magnitudes(log)

    assert measured is not None
    assert (measured.first.step, measured.latest.step) == (1, 11)


def test_run_without_measurement_has_none(tmp_path: Path) -> None:
    assert magnitudes.read_magnitudes(EventLog(tmp_path / "events.jsonl")) is None


def test_axis_spans_both_histograms_and_float16() -> None:
    measured = magnitudes.Magnitudes(first=event(1, -40), latest=event(2, 20), findings=())

    assert measured.axis("weights") == (-42, 23)
    assert measured.ticks(-42, 22) == [-42, -26, -10, 6, 22]
    assert measured.tallest("weights") == pytest.approx(1)
