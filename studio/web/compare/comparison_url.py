"""The URL of a comparison: its runs, axes and display options."""

import math
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs, urlencode

from pydantic import BaseModel, BeforeValidator, Field

from studio.services.compare.compare import Comparison

MAX_SMOOTHING = 0.98
KEY_PATTERN = r"^[\w./-]{0,100}$"


def _split_list(value: Any) -> Any:  # noqa: ANN401 -- any query value
    """Split comma-separated values: `1,2` equals `1` and `2` in two parameters."""
    parts = [value] if isinstance(value, str) else value
    return [word for part in parts for word in str(part).split(",") if word.strip()]


def _parse_ids(value: Any) -> Any:  # noqa: ANN401 -- any query value
    return list(dict.fromkeys(int(word) for word in _split_list(value) if word.strip().isdecimal()))


IdList = Annotated[list[int], BeforeValidator(_parse_ids)]
NameList = Annotated[list[str], BeforeValidator(_split_list)]
AxisScale = Literal["linear", "log"]
CurveShape = Literal["", "difference", "offset"]


class ComparisonQuery(BaseModel):
    """The query parameters of a comparison; those left out have their defaults."""

    runs: IdList = []
    run: IdList = []
    """Runs selected in a list, to be added."""
    base: int | None = None
    x: Annotated[str, Field(pattern=KEY_PATTERN)] = "step"
    y: AxisScale = "linear"
    xscale: AxisScale = "linear"
    smooth: Annotated[float, Field(ge=0, le=MAX_SMOOTHING)] = 0.6
    clip: bool = False
    curves: CurveShape = ""
    """Whether curves are drawn as differences from the baseline, or moved apart."""
    m: NameList = []
    """Metrics to draw; empty for the default ones."""
    group: Annotated[str, Field(pattern=KEY_PATTERN)] = ""
    hide: IdList = []
    zoom: Annotated[str, Field(max_length=60)] = ""
    """Visible range of the x axis, as `10..20`."""
    all: bool = False
    noise: bool = False
    """Whether seed and name count as differences."""
    plot: Literal["", "parallel", "scatter"] = ""
    axes: NameList = []
    """Axes of the plot; empty for all that differ."""
    brush: Annotated[str, Field(max_length=2000)] = ""
    """Selected ranges of axes, as `eval_loss:1..2;precision:bf16|fp32`."""
    differs: bool = False
    """Whether to show only the answers that differ."""
    find: Annotated[str, Field(max_length=200)] = ""
    """Words to search for in prompts and answers."""
    blind: int | None = None
    """Seed to shuffle the answers by, with hidden run names; None shows the names."""
    whole: bool = False
    """Whether to show all prompts, however many there are."""
    saved: int | None = None
    choose: bool = False

    @property
    def x_range(self) -> tuple[float, float] | None:
        """The visible range of the x axis; None for all of it."""
        span = _parse_range(self.zoom)
        return span if span and all(map(math.isfinite, span)) else None

    @property
    def url(self) -> str:
        return "/compare?" + self.query()

    def query(self, **changed: object) -> str:
        """Return the view as a query string, with some values changed."""
        values = self.model_copy(update=changed).model_dump(exclude_defaults=True, exclude={"run"})
        return urlencode(
            [(name, _format_value(value)) for name, value in values.items()], safe=",:;|."
        )


def parse_query(query: str) -> ComparisonQuery:
    """Parse a saved query string. The last of repeated values counts."""
    return ComparisonQuery.model_validate(
        {name: values if name == "m" else values[-1] for name, values in parse_qs(query).items()}
    )


def runs_outside_brush(made: Comparison, brush: str) -> set[int]:
    """Return the runs that a brush excludes."""
    places = {run.id or 0: index for index, run in enumerate(made.runs)}
    ranges = [part.partition(":") for part in brush.split(";") if ":" in part]
    return {
        number
        for number, index in places.items()
        if not all(
            _is_in_range(_axis_value(made, key, index), range_text)
            for key, _colon, range_text in ranges
        )
    }


def _axis_value(comparison: Comparison, key: str, index: int) -> Any:  # noqa: ANN401 -- a setting or a number
    if key in comparison.metrics:
        return comparison.metrics[key][index].value
    return comparison.settings[key][index] if key in comparison.settings else None


def _is_in_range(value: Any, range_text: str) -> bool:  # noqa: ANN401 -- a setting or a number
    span = _parse_range(range_text)
    if span is None:
        return str(value) in range_text.split("|")
    return isinstance(value, int | float) and span[0] <= value <= span[1]


def _parse_range(text: str) -> tuple[float, float] | None:
    low, dots, high = text.partition("..")
    try:
        return (float(low), float(high)) if dots else None
    except ValueError:
        return None


def _format_value(value: object) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
