"""Parts of reports: shortened texts, and answers before and after training."""

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from studio.db.tables import Sample
from studio.evaluation import answer_rules
from studio.redaction import redact
from studio.services.results.run_verdict import AnswerPair
from studio.services.samples import sample_diff
from studio.services.samples.sample_diff import AnswerScore
from studio.web.compare import svg_chart
from studio.web.compare.chart_readings import take_readings
from studio.web.compare.svg_chart import Chart
from studio.web.i18n import formatting

CHART_WIDTH, CHART_HEIGHT = 520, 300
BUCKETS = 300
"""Points of a curve: paper shows no more."""
MAX_ANSWERS = 40
_NO_WORD = re.compile(r"\W+")
MAX_TEXT = 1000
"""Characters of a prompt or answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedAnswers:
    """A run's first and newest answer to each prompt."""

    pairs: list[AnswerPair]
    total: int
    before: AnswerScore
    after: AnswerScore
    has_before: bool
    step: int | None
    """The step of the newest answers; None after training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnChart:
    """A chart, and the values that it shows as a table."""

    svg: Markup
    file_name: str
    """Of its picture, saved by itself."""
    heads: list[str]
    """Of the x axis, then of each curve."""
    rows: list[list[str]]

    @property
    def link(self) -> str:
        """A link to the picture by itself, which needs neither the studio nor a network."""
        picture = redact(str(self.svg))
        return f"data:image/svg+xml;base64,{b64encode(picture.encode()).decode()}"


def draw_chart(chart: Chart) -> DrawnChart:
    """Draw a chart for a report."""
    options = chart.options
    readings = take_readings(chart.x, [line.series for line in chart.lines])
    return DrawnChart(
        svg=svg_chart.to_markup(svg_chart.render_svg(chart.x, chart.lines, options)),
        file_name=f"{_NO_WORD.sub('-', options.title.lower()).strip('-')}.svg",
        heads=[formatting.axis_title(options.x_axis), *(line.label for line in chart.lines)],
        rows=[
            [
                formatting.axis_value(reading.place, options.x_axis),
                *(formatting.metric_value(value, options.y_metric) for value in reading.values),
            ]
            for reading in readings
        ],
    )


def first_and_last(samples: Sequence[Sample]) -> ReportedAnswers:
    """Pair the answers before training with the newest ones."""
    by_position: dict[int, dict[tuple[str, int], Sample]] = {}
    for sample in samples:
        by_position.setdefault(sample.position, {})[sample.stage, sample.step] = sample
    newest = max(samples, key=_moment, default=None)
    key = (newest.stage, newest.step) if newest else ("", 0)
    pairs = [_pair(answers, key) for _at, answers in sorted(by_position.items()) if key in answers]
    return ReportedAnswers(
        pairs=pairs[:MAX_ANSWERS],
        total=len(pairs),
        before=sample_diff.count_correct(pair.was_right for pair in pairs),
        after=sample_diff.count_correct(pair.is_right for pair in pairs),
        has_before=newest is not None and newest.stage != "before",
        step=None if newest is None or newest.stage == "after" else newest.step,
    )


def shorten(text: str, limit: int = MAX_TEXT) -> str:
    """Cut a text that would make a report too large, and mark the cut."""
    return text if len(text) <= limit else f"{text[:limit]} […]"


def _moment(sample: Sample) -> tuple[int, bool, bool]:
    return sample.step, sample.stage == "after", sample.stage != "before"


def _pair(answers: Mapping[tuple[str, int], Sample], newest: tuple[str, int]) -> AnswerPair:
    after = answers[newest]
    before = next((one for (stage, _step), one in answers.items() if stage == "before"), None)
    first = before.answer if before else ""
    return AnswerPair(
        prompt=shorten(after.prompt),
        expected=shorten(after.reference),
        before=shorten(first),
        after=shorten(after.answer),
        was_right=answer_rules.is_correct(first, after.reference) if before else None,
        is_right=answer_rules.is_correct(after.answer, after.reference),
    )
