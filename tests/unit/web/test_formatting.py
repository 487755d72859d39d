"""One way to write each thing."""

from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pytest

from studio.services.precision.float_encoding import Number
from studio.web.i18n import formatting
from studio.web.numbers import exact_digits

NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "\N{EN DASH}"),
        (0, "0"),
        (1.23456, "1.235"),
        (0.0002, "0.0002"),
        (0.00001234567, "1.23e-05"),
        (8203.4, "8,203"),
        (-0.25, "\N{MINUS SIGN}0.25"),
        (-0.00001, "\N{MINUS SIGN}1e-05"),
        (-8203.4, "\N{MINUS SIGN}8,203"),
        (12345.6, "12,346"),
        (NAN, "NaN"),
        (INFINITY, "infinite"),
        (-INFINITY, "infinite"),
    ],
)
def test_numbers_have_four_digits_and_never_round_to_zero(value: float | None, text: str) -> None:
    assert formatting.number(value) == text


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("peak_memory_bytes", 1.9e9, "1.9 GB"),
        ("train_seconds", 75.0, "1 min 15 s"),
        ("eval_loss", NAN, "NaN"),
        ("eval_loss", None, "\N{EN DASH}"),
    ],
)
def test_metric_value_is_formatted_in_unit_of_its_name(
    name: str, value: float | None, text: str
) -> None:
    assert formatting.metric_value(value, name) == text


@pytest.mark.parametrize(
    ("delta", "text"),
    [(0.05, "+0.05"), (-0.05, "\N{MINUS SIGN}0.05"), (0.0, ""), (None, ""), (NAN, "NaN")],
)
def test_change_is_formatted_with_sign(delta: float | None, text: str) -> None:
    assert formatting.change(delta, "eval_loss") == text


@pytest.mark.parametrize(
    ("delta", "text"),
    [
        (1 / 3, "+33.3 points"),
        (-0.125, "\N{MINUS SIGN}12.5 points"),
        (0.01, "+1 point"),
        (0.0, ""),
        (NAN, "NaN"),
    ],
)
def test_change_of_a_share_is_in_points(delta: float, text: str) -> None:
    assert formatting.change(delta, "preferred_share") == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "\N{EN DASH}"), (True, "yes"), (False, "no"), (8, "8"), ("float32", "float32")],
)
def test_setting_value_is_formatted_as_text(value: object, text: str) -> None:
    assert formatting.setting(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (65504.0, "65,504"),
        (2**-3, "0.125"),
        (2**-7, "0.00781"),
        (3.4028235e38, "3.4\u00a0\N{MULTIPLICATION SIGN}\u00a010\u00b3\u2078"),
        (2**-23, "1.2\u00a0\N{MULTIPLICATION SIGN}\u00a010\u207b\u2077"),
    ],
)
def test_very_large_and_small_magnitudes_use_powers_of_ten(value: float, text: str) -> None:
    assert formatting.magnitude(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.10002, "1.10002"),
        (2001, "2,001"),
        (-1234.567, "\N{MINUS SIGN}1,234.57"),
        (12345678, "1.23457e+07"),
        (NAN, "NaN"),
    ],
)
def test_precise_numbers_have_six_digits(value: float, text: str) -> None:
    assert formatting.precise(value) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (-0.0, "\N{MINUS SIGN}0"),
        (16777217.5, "16,777,217.5"),
        (-65504.0, "\N{MINUS SIGN}65,504"),
        (2.0**40, "1.099511627776\u00a0\N{MULTIPLICATION SIGN}\u00a010\u00b9\u00b2"),
        (Fraction(1, 3), "0.3333333333333333\N{HORIZONTAL ELLIPSIS}"),
    ],
)
def test_exact_digits_are_grouped(number: Number, text: str) -> None:
    assert exact_digits.digits(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "\N{EN DASH}"),
        (1.25, "1.2 s"),
        (42, "42 s"),
        (61, "1 min 1 s"),
        (3700, "1 h 1 min"),
        (90000, "1 d 1 h"),
    ],
)
def test_duration_is_formatted_in_two_units(seconds: float | None, text: str) -> None:
    assert formatting.duration(seconds) == text


def test_prose_is_one_paragraph_with_code_and_nothing_to_run() -> None:
    text = "Only `q_proj`\nand <b>others</b>."

    assert formatting.prose(text) == "Only <code>q_proj</code> and &lt;b&gt;others&lt;/b&gt;."


def test_size_is_formatted_in_most_readable_unit() -> None:
    assert [formatting.size(value) for value in (12, 3_400_000, 5e12)] == ["12 B", "3.4 MB", "5 TB"]
    assert [formatting.size(value) for value in (999, 999_600, 999_600_000)] == [
        "999 B",
        "1 MB",
        "1 GB",
    ]


def test_past_time_is_formatted_as_time_ago() -> None:
    now = datetime.now(UTC)

    assert [
        formatting.relative_time(now - timedelta(minutes=minutes)) for minutes in (0, 5, 125, 3000)
    ] == [
        "just now",
        "5 min ago",
        "2 h ago",
        "2 d ago",
    ]


def test_future_time_is_formatted_as_time_left() -> None:
    now = datetime.now(UTC)

    assert [
        formatting.relative_time(now + timedelta(seconds=seconds)) for seconds in (20, 130, 7300)
    ] == [
        "in a moment",
        "in 2 min",
        "in 2 h",
    ]


@pytest.mark.parametrize("at", [datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05Z"])
def test_time_element_has_exact_time_as_title(at: datetime | str) -> None:
    told = formatting.time_element(at)

    assert told.startswith(
        '<time datetime="2026-01-02T03:04:05+00:00" title="2026-01-02 03:04:05 UTC">'
    )


def test_unnamed_metric_gets_generated_title() -> None:
    assert [formatting.metric_title(name) for name in ("eval_loss", "some_other")] == [
        "Validation loss",
        "Some other",
    ]
