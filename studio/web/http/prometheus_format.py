"""The Prometheus text format, version 0.0.4."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

MetricType = Literal["counter", "gauge", "histogram"]
_ESCAPES = {ord("\\"): r"\\", ord("\n"): r"\n", ord('"'): r"\""}


@dataclass(frozen=True, slots=True)
class Sample:
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric with all its samples."""

    name: str
    kind: MetricType
    help: str
    samples: Sequence[Sample]


def gauge(name: str, about: str, value: float) -> Family:
    return Family(name, "gauge", about, [Sample(value)])


def labelled_metric(
    name: str, kind: MetricType, about: str, label: str, values: Mapping[str, float]
) -> Family:
    """Make a metric with one label."""
    samples = [Sample(value, {label: key}) for key, value in values.items()]
    return Family(name, kind, about, samples)


def histogram_samples(
    bounds: Sequence[float],
    within: Sequence[int],
    count: int,
    total: float,
    labels: Mapping[str, str] | None = None,
) -> Iterator[Sample]:
    """Make the samples of one histogram; `within` holds the cumulative count of each bound."""
    base_labels = dict(labels or {})
    for bound, cumulative in zip(bounds, within, strict=True):
        yield Sample(cumulative, base_labels | {"le": _format_number(bound)}, "_bucket")
    yield Sample(count, base_labels | {"le": "+Inf"}, "_bucket")
    yield Sample(total, base_labels, "_sum")
    yield Sample(count, base_labels, "_count")


def render_text(families: Iterable[Family]) -> str:
    return "".join(line + "\n" for family in families for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    yield f"# HELP {family.name} {family.help}"
    yield f"# TYPE {family.name} {family.kind}"
    for sample in family.samples:
        labels = ",".join(
            f'{key}="{value.translate(_ESCAPES)}"' for key, value in sample.labels.items()
        )
        braces = f"{{{labels}}}" if labels else ""
        yield f"{family.name}{sample.suffix}{braces} {_format_number(sample.value)}"


def _format_number(value: float) -> str:
    """Format a number without losing precision; integers without a decimal point."""
    return str(int(value)) if float(value).is_integer() else repr(float(value))
